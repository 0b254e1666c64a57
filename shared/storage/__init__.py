"""Object stores keep images and datasets. The URL selects the implementation.

file:///var/images, file://./out     a folder, absolute or relative
s3://bucket/prefix                   S3; query: endpoint_url=…, region=…
gs://bucket/prefix                   Google Cloud Storage
memory://                            the memory of this process
"""

from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.process.extras import how_to_install
from imagefleet.shared.storage.base import ObjectStore, StoredObject
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.shared.text.printable import mask_url

__all__ = [
    "ObjectStore",
    "StoredObject",
    "announced_url",
    "endpoint_of",
    "folder_of",
    "open_store",
    "place_of",
]

_FORMS: Final = "file:///folder, file://./folder, s3://bucket/prefix or gs://bucket/prefix"
_FOLDERS: Final = ("/", "./", "../")
"""How the path of a folder begins, which is no address."""
_S3_OPTIONS: Final = frozenset({"endpoint_url", "region"})


def open_store(url: str, setting: str = "IMAGEFLEET_STORAGE_URL") -> ObjectStore:
    """Return the store of `url`, which is the value of `setting`. `check` connects to it first.

    Raises:
        ConfigurationError: `url` is not the address of a store, or its client is not installed.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "file":
        return FolderStore(_folder(rest, setting))
    if separator and scheme == "s3":
        return _open_s3(url, setting)
    if separator and scheme == "gs":
        return _open_gcs(url, setting)
    if url == "memory://":
        return MemoryStore()
    shown = mask_url(url)
    advice = f"; write file://{quote(shown)} for this folder" if url.startswith(_FOLDERS) else ""
    raise ConfigurationError(f"{setting}={shown!r}: must be {_FORMS}{advice}")


def announced_url(url: str, store: ObjectStore) -> str | None:
    """Return the address by which other processes open `store`, which was opened from `url`.

    It holds no relative path. None: no other process can open the store.
    """
    if url.startswith("memory:"):
        return None
    query = urlsplit(url).query
    return store.url + (f"?{query}" if query else "")


def place_of(url: str, store: ObjectStore) -> str:
    """Return which store this is, whatever the spelling of `url`, from which it was opened.

    It is the store's URL, with the server if that is not the provider's own.
    """
    endpoint = endpoint_of(url)
    return store.url if endpoint is None else f"{store.url} at {endpoint.rstrip('/')}"


def folder_of(url: str) -> Path | None:
    """Return the folder of a `file://` address; None for another address."""
    scheme, separator, rest = url.partition("://")
    return _folder(rest, url) if separator and scheme == "file" else None


def endpoint_of(url: str) -> str | None:
    """Return the `endpoint_url` of an `s3://` address; None for AWS's own."""
    return _options(url).get("endpoint_url")


def _options(url: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}


def _folder(rest: str, setting: str) -> Path:
    path = unquote(rest.removeprefix("localhost"))
    if not path.startswith(("/", ".")):
        raise ConfigurationError(
            f"{setting}='file://{rest}' names a host; "
            f"write file://./{rest} for a folder here, or file:///… for an absolute one"
        )
    return Path(path)


def _open_s3(url: str, setting: str) -> ObjectStore:
    try:
        from imagefleet.shared.storage.s3 import S3Store
    except ImportError as error:
        raise ConfigurationError(f"s3:// needs {error.name}; {how_to_install('images')}") from error
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
    return S3Store(
        parts.netloc,
        unquote(parts.path),
        endpoint_url=options.get("endpoint_url"),
        region=options.get("region"),
    )


def _open_gcs(url: str, setting: str) -> ObjectStore:
    try:
        from imagefleet.shared.storage.gcs import GcsStore
    except ImportError as error:
        raise ConfigurationError(
            f"gs:// needs google-cloud-storage; {how_to_install('gcs')}"
        ) from error
    parts = urlsplit(url)
    if "@" in unquote(url) or parts.query or not parts.netloc:
        raise ConfigurationError(
            f"{setting}: must be gs://bucket/prefix without options and credentials; "
            "GOOGLE_APPLICATION_CREDENTIALS names a key file"
        )
    try:
        return GcsStore(parts.netloc, unquote(parts.path))
    except ConfigurationError as error:
        raise ConfigurationError(f"{setting}: {error}") from error
