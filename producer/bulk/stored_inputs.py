"""Find the objects that an `s3://` or `gs://` address names: one, those of a pattern, or all below.

Input: an address. Output: a store and the sorted keys of its tables.
"""

from fnmatch import fnmatchcase
from typing import Final

from imagefleet.producer.bulk.readers import FILE_TYPES, has_file_type
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.storage import ObjectStore, endpoint_of, open_store
from imagefleet.shared.text.printable import mask_url

_WILDCARDS: Final = "*["


def find_objects(
    url: str, *, any_type: bool, destination: str = ""
) -> tuple[ObjectStore, list[str]]:
    """Return the store and the keys of the tables at `url`.

    `s3://bucket/rows.csv` is one object, `s3://bucket/rows/*.csv` those of a pattern, in which `*`
    matches no `/`, and `s3://bucket/rows/` all below.

    Args:
        any_type: whether objects count whose names do not say that they are tables.
        destination: URL of the dataset that is made of them. Its own objects are left out of a
            pattern, and of a prefix that does not lie in the dataset.

    Raises:
        InvalidRequest: there is no such object, or the address is wrong.
        ConfigurationError: the client of the store is not installed.
        StorageDenied, StorageUnavailable: the store cannot be read.
    """
    scheme, _, rest = url.partition("://")
    address, question, query = rest.partition("?")
    bucket, _, path = address.partition("/")
    folder, pattern = _split(path)
    if not bucket:
        raise InvalidRequest("input", mask_url(url), f"must be {scheme}://bucket/prefix")
    try:
        store = open_store(f"{scheme}://{bucket}/{folder}{question}{query}", "input")
        output = _output_on_server_of(url, destination)
        keys = _matching(store, pattern, output, any_type=any_type)
    except InvalidRequest as error:
        raise InvalidRequest("input", mask_url(url), error.limit) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"the input {mask_url(url)}: {error}") from None
    if not keys:
        known = ", ".join(f".{each}" for each in FILE_TYPES)
        limit = "there is no such object, or none that ends in " + known
        raise InvalidRequest("input", mask_url(url), limit)
    return store, keys


def _split(path: str) -> tuple[str, str]:
    """Return the longest folder of `path` without a wildcard, and the rest."""
    parts = path.split("/")
    plain = next(
        (at for at, part in enumerate(parts[:-1]) if any(mark in part for mark in _WILDCARDS)),
        len(parts) - 1,
    )
    return "/".join(parts[:plain]), "/".join(parts[plain:])


def _output_on_server_of(url: str, destination: str) -> str | None:
    """Return the URL with which those of a dataset's objects begin. None: it is elsewhere."""
    server, other = ((endpoint_of(each) or "").rstrip("/") for each in (url, destination))
    return destination.partition("?")[0] if destination and server == other else None


def _matching(store: ObjectStore, pattern: str, output: str | None, *, any_type: bool) -> list[str]:
    if pattern and not any(mark in pattern for mark in _WILDCARDS):
        if store.exists(pattern):
            return [pattern]
        pattern += "/"  # a folder without the final slash
    if not pattern or pattern.endswith("/"):
        keys = store.list(pattern)
        if output is not None and (store.url + pattern).startswith(output):
            output = None
    else:
        keys = (key for key in store.list() if _fits(key, pattern))
    if output is not None:
        keys = (key for key in keys if not (store.url + key).startswith(output))
    return sorted(key for key in keys if any_type or has_file_type(key))


def _fits(key: str, pattern: str) -> bool:
    names, patterns = key.split("/"), pattern.split("/")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))
