"""The schemes of storage addresses: one table says all that tells one kind of store from another.

file:///var/images, file://./out     a folder, absolute or relative
s3://bucket/prefix                   S3; query: endpoint_url=…, region=…
gs://bucket/prefix                   Google Cloud Storage
memory://                            the memory of this process
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.storage.base import KeyCheck, ObjectStore
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.shared.text.printable import mask_url

FOLDER_PATHS: Final = ("/", "./", "../")
"""The path of a folder begins with one of these. It is no address."""
_S3_OPTIONS: Final = frozenset({"endpoint_url", "region"})


class Place(Enum):
    """A store keeps its objects in one of these places. It says who else can open the store."""

    BUCKET = "bucket"
    """The objects lie in a bucket on a server. Every host can open it; datasets are read from it
    and written to it."""
    FOLDER = "folder"
    """The objects lie in a folder of this host, or in one that several hosts mount; the same holds
    for datasets."""
    PROCESS = "process"
    """The objects lie in the memory of this process. No other process can open it, so no dataset
    lies there."""


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A scheme is the part of an address before `://`. It stands for one kind of store."""

    name: str
    """It stands without `://`."""
    place: Place
    examples: tuple[str, ...] = ()
    """Addresses look like these. The first example is the usual form."""
    client: str = ""
    """The package that talks to the server. '' means that none is needed."""
    extra: str = ""
    """The extra of imagefleet that installs `client`."""
    open: Callable[[str, str, KeyCheck], ObjectStore]
    """It takes an address, the setting whose value that is, and which keys a bucket takes, and
    returns the store.

    It raises ConfigurationError if the address is wrong, and ImportError without `client`.
    """


def scheme_of(address: str) -> Scheme | None:
    """Return the scheme of a store's address; None if no store has such an address."""
    name, separator, _ = address.partition("://")
    return _BY_NAME.get(name) if separator else None


def schemes_at(*places: Place) -> list[Scheme]:
    """Return the schemes of the first place, then those of the next, in the order of the table."""
    return [scheme for place in places for scheme in _SCHEMES if scheme.place is place]


def not_an_address(text: str, setting: str) -> ConfigurationError:
    """Return the error about `text`, which is the value of `setting` and no store's address."""
    shown = mask_url(text)
    schemes = schemes_at(Place.FOLDER, Place.BUCKET)
    *forms, last = [example for scheme in schemes for example in scheme.examples]
    is_path = text.startswith(FOLDER_PATHS)
    advice = f"; write file://{quote(shown)} for this folder" if is_path else ""
    return ConfigurationError(f"{setting}={shown!r}: must be {', '.join(forms)} or {last}{advice}")


def folder_of(url: str) -> Path | None:
    """Return the folder of a `file://` address; None for another address."""
    scheme = scheme_of(url)
    return _folder(url, url) if scheme is not None and scheme.place is Place.FOLDER else None


def endpoint_of(url: str) -> str | None:
    """Return the `endpoint_url` of an `s3://` address; None for AWS's own."""
    return _options(url).get("endpoint_url")


def _options(url: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}


def _folder(url: str, setting: str) -> Path:
    rest = url.removeprefix("file://")
    path = unquote(rest.removeprefix("localhost"))
    if not path.startswith(("/", ".")):
        raise ConfigurationError(
            f"{setting}='file://{rest}' names a host; "
            f"write file://./{rest} for a folder here, or file:///… for an absolute one"
        )
    return Path(path)


def _open_folder(url: str, setting: str, _: KeyCheck) -> ObjectStore:
    return FolderStore(_folder(url, setting))


def _open_s3(url: str, setting: str, key_check: KeyCheck) -> ObjectStore:
    from imagefleet.shared.storage.s3 import S3Store

    parts = urlsplit(url)
    options = _options(url)
    if unknown := sorted(options.keys() - _S3_OPTIONS):
        known = ", ".join(sorted(_S3_OPTIONS))
        raise ConfigurationError(f"{setting}: there is no option {unknown[0]}, only {known}")
    if "@" in unquote(url):  # anywhere: a secret that is not percent-encoded may hold a / or a ?
        raise ConfigurationError(
            f"{setting}: must be s3://bucket/prefix[?endpoint_url=…] without credentials; set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"
        )
    if not parts.netloc:
        raise ConfigurationError(f"{setting}: must be s3://bucket/prefix")
    try:
        return S3Store(
            parts.netloc,
            unquote(parts.path),
            endpoint_url=options.get("endpoint_url"),
            region=options.get("region"),
            key_check=key_check,
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{setting}: {error}") from error


def _open_gcs(url: str, setting: str, key_check: KeyCheck) -> ObjectStore:
    from imagefleet.shared.storage.gcs import GcsStore

    parts = urlsplit(url)
    if "@" in unquote(url) or parts.query or not parts.netloc:
        raise ConfigurationError(
            f"{setting}: must be gs://bucket/prefix without options and credentials; "
            "GOOGLE_APPLICATION_CREDENTIALS names a key file"
        )
    try:
        return GcsStore(parts.netloc, unquote(parts.path), key_check=key_check)
    except ConfigurationError as error:
        raise ConfigurationError(f"{setting}: {error}") from error


def _open_memory(url: str, setting: str, _: KeyCheck) -> ObjectStore:
    if url != MemoryStore.url:
        raise not_an_address(url, setting)
    return MemoryStore()


_SCHEMES: Final = (
    Scheme(
        name="s3",
        place=Place.BUCKET,
        examples=("s3://bucket/prefix",),
        client="boto3",
        extra="images",
        open=_open_s3,
    ),
    Scheme(
        name="gs",
        place=Place.BUCKET,
        examples=("gs://bucket/prefix",),
        client="google-cloud-storage",
        extra="gcs",
        open=_open_gcs,
    ),
    Scheme(
        name="file",
        place=Place.FOLDER,
        examples=("file:///folder", "file://./folder"),
        open=_open_folder,
    ),
    Scheme(name="memory", place=Place.PROCESS, open=_open_memory),
)
_BY_NAME: Final = {scheme.name: scheme for scheme in _SCHEMES}
