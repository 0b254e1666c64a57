"""Find the objects that an `s3://` or `gs://` address names: one, those of a pattern, or all below.

Input: an address. Output: a store and the sorted keys of its tables.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from imagefleet.producer.bulk.readers import TABLE_ENDS, has_file_type, is_image
from imagefleet.producer.bulk.saved_datasets import SPLITS, only_split
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.storage import ObjectStore, endpoint_of, open_bucket_of_others
from imagefleet.shared.text.printable import mask_url

_WILDCARDS: Final = r"[*\[]"


def find_objects(
    url: str, *, any_type: bool, destination: str = ""
) -> tuple[ObjectStore, list[str]]:
    """Return the store and the keys of the tables at `url`.

    `s3://bucket/rows.csv` is one object, `s3://bucket/rows/*.csv` those of a pattern, in which `*`
    matches no `/`, and `s3://bucket/rows/` all below. Hidden objects are found only by a name or a
    pattern that begins with a dot itself.

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
    if not bucket:
        raise InvalidRequest("input", mask_url(url), f"must be {scheme}://bucket/prefix")
    try:
        # A bucket's name holds no colon, but credentials do, which the store refuses.
        root = url if ":" in bucket else f"{scheme}://{bucket}/{question}{query}"
        store = open_bucket_of_others(root, "input")
        output = _output_on_server_of(url, destination)
        keys = _matching(store, path, output, any_type=any_type)
    except InvalidRequest as error:
        raise InvalidRequest("input", mask_url(url), error.limit) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"the input {mask_url(url)}: {error}") from None
    if not keys:
        known = ", ".join(f".{each}" for each in sorted(TABLE_ENDS))
        limit = "there is no such object, or none that ends in " + known
        raise InvalidRequest("input", mask_url(url), limit)
    return store, keys


def _output_on_server_of(url: str, destination: str) -> str | None:
    """Return the URL with which those of a dataset's objects begin. None: it is elsewhere."""
    server, other = ((endpoint_of(each) or "").rstrip("/") for each in (url, destination))
    return destination.partition("?")[0] if destination and server == other else None


def _matching(store: ObjectStore, pattern: str, output: str | None, *, any_type: bool) -> list[str]:
    plain = re.split(_WILDCARDS, pattern, maxsplit=1)[0]
    if pattern and not pattern.endswith("/"):
        if store.exists(pattern):
            return [pattern]
        if plain == pattern:
            pattern += "/"  # a folder without the final slash
    if not pattern or pattern.endswith("/"):
        if store.exists(pattern + SPLITS):
            pattern += only_split(store.url + pattern, store.get(pattern + SPLITS)) + "/"
        keys = (
            key
            for key in store.list(pattern)
            if not is_hidden(key.removeprefix(pattern).split("/"))
        )
        if output is not None and (store.url + pattern).startswith(output):
            output = None
    else:
        keys = (key for key in store.list(plain) if _fits(key, pattern))
    if output is not None:
        keys = (key for key in keys if not (store.url + key).startswith(output))
    keys = (key for key in keys if not key.endswith("/"))  # consoles make such for folders
    name = pattern.rpartition("/")[2]
    with_json, with_images = ".json" in name, is_image(name)
    return sorted(
        key
        for key in keys
        if any_type or has_file_type(key, with_json=with_json) or (with_images and is_image(key))
    )


def _fits(key: str, pattern: str) -> bool:
    names, patterns = key.split("/"), pattern.split("/")
    return len(names) == len(patterns) and all(map(_fits_name, names, patterns))


def _fits_name(name: str, pattern: str) -> bool:
    """Return whether a name fits, as a shell has it: a wildcard stands for no dot at the start."""
    return fnmatchcase(name, pattern) and (pattern.startswith(".") or not name.startswith("."))


def is_hidden(parts: Iterable[str]) -> bool:
    """Return whether a part of a path below a folder is hidden: programs keep copies there, as
    .ipynb_checkpoints/a.csv and ._a.csv, which repeat rows or hold none."""
    return any(part.startswith(".") for part in parts)
