"""Find the objects that an `s3://` or `gs://` address names: one, those of a pattern, or all below.

Input: an address. Output: a store and the sorted keys of its tables.
"""

from fnmatch import fnmatchcase
from typing import Final

from imagefleet.producer.bulk.readers import FILE_TYPES, has_file_type
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.shared.text import mask_url

_WILDCARDS: Final = "*["


def find_objects(url: str, *, any_type: bool) -> tuple[ObjectStore, list[str]]:
    """Return the store and the keys of the tables at `url`.

    `s3://bucket/rows.csv` is one object, `s3://bucket/rows/*.csv` those of a pattern, in which `*`
    matches no `/`, and `s3://bucket/rows/` all below.

    Args:
        any_type: whether objects count whose names do not say that they are tables.

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
        keys = _matching(store, pattern, any_type=any_type)
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


def _matching(store: ObjectStore, pattern: str, *, any_type: bool) -> list[str]:
    if pattern and not any(mark in pattern for mark in _WILDCARDS):
        if store.exists(pattern):
            return [pattern]
        pattern += "/"  # a folder without the final slash
    if not pattern or pattern.endswith("/"):
        keys = store.list(pattern)
    else:
        keys = (key for key in store.list() if _fits(key, pattern))
    return sorted(key for key in keys if any_type or has_file_type(key))


def _fits(key: str, pattern: str) -> bool:
    names, patterns = key.split("/"), pattern.split("/")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))
