"""What every object store is: a few verbs over keys and bytes.

Knows no vendor, no folder, no job. Keys are relative, '/'-separated and plain, so that none can
point outside the store's root.
"""

import hashlib
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Final, Protocol

from imagefleet.shared.errors import InvalidRequest, StorageDenied, StorageUnavailable

_SEGMENT: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_KEY: Final = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*")
_LONGEST_KEY: Final = 1_024


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """What a put leaves behind."""

    key: str
    url: str
    sha256: str
    """hexadecimal"""
    size: int
    """bytes"""


class ObjectStore(Protocol):
    """Every verb raises StorageUnavailable (try again) or StorageDenied (do not)."""

    url: str
    """Of the root, ending in '/', without credentials. An object's is this and its key."""

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        """Store `data` whole or not at all, over what was there."""

    def put_file(self, key: str, source: BufferedIOBase, content_type: str) -> StoredObject:
        """As `put`, of a file too large to hold: all of it, from its beginning."""

    def get(self, key: str) -> bytes:
        """Raises KeyError if there is no such object."""

    def exists(self, key: str) -> bool: ...

    def list(self, prefix: str = "") -> Iterator[str]:
        """Keys that start with `prefix`, in no promised order."""

    def delete(self, key: str) -> None:
        """Nothing happens if there is no such object."""

    def delete_below(self, folder: str) -> None:
        """Everything whose key begins with `folder` and '/', and what killed puts left there."""

    def check(self) -> None:
        """Prove that we can write and read.

        Raises:
            ConfigurationError, StorageDenied, StorageUnavailable: what is wrong, in one sentence.
        """


def check_key(key: str) -> str:
    """Return `key` if it can be one. Raises InvalidRequest."""
    if len(key) > _LONGEST_KEY or not _KEY.fullmatch(key):
        raise InvalidRequest(
            "key", key, "must be plain names joined by '/', at most 1024 characters"
        )
    return key


def stored(root: str, key: str, data: bytes) -> StoredObject:
    return StoredObject(
        key=key, url=root + key, sha256=hashlib.sha256(data).hexdigest(), size=len(data)
    )


def stored_file(root: str, key: str, source: BufferedIOBase) -> StoredObject:
    """As `stored`; leaves `source` at its beginning."""
    source.seek(0)
    sha256 = hashlib.file_digest(source, "sha256").hexdigest()
    size = source.tell()
    source.seek(0)
    return StoredObject(key=key, url=root + key, sha256=sha256, size=size)


def delete_each(store: ObjectStore, folder: str) -> None:
    """`delete_below` of stores in which a killed put leaves nothing."""
    for key in list(store.list(f"{check_key(folder)}/")):
        store.delete(key)


def prove(store: ObjectStore) -> None:
    """Write, read and remove one small object under a name nobody else has."""
    key, data = f"check-{uuid.uuid4().hex}", b"imagefleet was here"
    store.put(key, data, "text/plain")
    try:
        found = store.get(key)
    except KeyError:
        found = b""
    if found != data:
        raise StorageUnavailable(f"{store.url} does not return what was just written to it")
    with suppress(StorageDenied):  # a worker needs no right to delete
        store.delete(key)
