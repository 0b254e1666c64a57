"""Define the interface of object stores: a few methods that take keys and bytes.

This module depends on no vendor, folder or job. Keys are relative, plain and separated by '/', so
that no key can point outside the root of its store.
"""

import hashlib
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import SEEK_END, BufferedIOBase
from typing import BinaryIO, Final, Protocol

from imagefleet.shared.errors import (
    ConfigurationError,
    InvalidRequest,
    StorageDenied,
    StorageUnavailable,
)

_SEGMENT: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_KEY: Final = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*")
_MAX_KEY_CHARACTERS: Final = 1_024
_MAX_KEY_BYTES: Final = 1_024
"""S3 and Google have no longer keys."""
_MAX_EXPIRES_S: Final = 604_800
"""S3 and Google refuse presigned addresses that are valid for over 7 days."""


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """A stored object has a key, an address, a digest and a size."""

    key: str
    url: str
    sha256: str
    """The digest is hexadecimal."""
    size: int
    """It counts the bytes of the object."""


def always() -> bool:
    """Return True: nothing ends the deletion of a folder before it is empty."""
    return True


class ObjectStore(Protocol):
    """An object store keeps objects by key.

    Every method may raise StorageUnavailable (a retry may succeed) or StorageDenied (it will not).
    """

    url: str
    """The URL of the root ends in '/' and has no credentials. An object's URL is this + key."""

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        """Store `data` whole or not at all. An object with this key is replaced."""

    def put_file(self, key: str, source: BufferedIOBase, content_type: str) -> StoredObject:
        """Store a file that is too large for memory, from its beginning; otherwise like `put`."""

    def get(self, key: str, max_bytes: int | None = None) -> bytes:
        """Return the object's content. Read nothing of an object larger than `max_bytes`.

        Raises:
            KeyError: there is no such object.
            InvalidRequest: it is larger than `max_bytes`.
        """

    def get_file(self, key: str, target: BinaryIO) -> None:
        """Write the object's content to a file, without holding all of it in memory.

        Raises:
            KeyError: there is no such object.
        """

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes, at least 1, of the object from byte `start` on. It has more
        than `start` bytes.

        Raises:
            KeyError: there is no such object.
        """

    def exists(self, key: str) -> bool:
        """Return whether there is an object with this key."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that start with `prefix`, in any order."""

    def delete(self, key: str) -> None:
        """Delete the object, if it exists."""

    def delete_below(self, folder: str, may_delete: Callable[[], bool] = always) -> None:
        """Delete all objects whose keys begin with `folder` and '/', and what killed puts left.

        `may_delete` is called before each of them. The rest stays once it returns False.
        """

    def presigned_url(self, key: str, expires_s: int) -> str:
        """Return an address from which anybody can read the object for `expires_s` seconds.

        Raises:
            InvalidRequest: `expires_s` is no int from 1 to 604,800 (7 days).
            ConfigurationError: the store has no such addresses, or credentials are missing.
        """

    def check(self) -> None:
        """Write and read a small object.

        Raises:
            ConfigurationError, StorageDenied, StorageUnavailable: the store cannot be used.
        """


def check_key(key: str) -> str:
    """Return `key` if it is valid. Raises InvalidRequest."""
    if len(key) > _MAX_KEY_CHARACTERS or not _KEY.fullmatch(key):
        raise InvalidRequest(
            "key", key, "must be plain names joined by '/', at most 1024 characters"
        )
    return key


KeyCheck = Callable[[str], str]
"""It returns a valid key, and raises InvalidRequest for another one."""


def check_any_key(key: str) -> str:
    """Return `key` if a bucket can hold such an object, which need not be one that we wrote: keys
    of others hold blanks, `=`, or an empty name. Raises InvalidRequest."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= _MAX_KEY_BYTES:
        raise InvalidRequest("key", key, f"must have 1 to {_MAX_KEY_BYTES:,} bytes of UTF-8")
    return key


def check_size(key: str, size: int, max_bytes: int | None) -> None:
    """Raise InvalidRequest if an object of `size` bytes is larger than `max_bytes`."""
    if max_bytes is not None and size > max_bytes:
        raise InvalidRequest("key", key, f"has {size:,} bytes; must be at most {max_bytes:,} bytes")


def describe_object(root: str, key: str, data: bytes) -> StoredObject:
    """Return the description of an object in the store with the URL `root`."""
    return StoredObject(
        key=key, url=root + key, sha256=hashlib.sha256(data).hexdigest(), size=len(data)
    )


def describe_file(root: str, key: str, source: BufferedIOBase) -> StoredObject:
    """Return the description of a file's object, and rewind `source`."""
    source.seek(0)
    sha256 = hashlib.file_digest(source, "sha256").hexdigest()
    size = source.seek(0, SEEK_END)
    source.seek(0)
    return StoredObject(key=key, url=root + key, sha256=sha256, size=size)


def delete_each(store: ObjectStore, folder: str, may_delete: Callable[[], bool]) -> None:
    """Implement `delete_below` for stores in which a killed put leaves nothing."""
    for key in list(store.list(f"{check_key(folder)}/")):
        if not may_delete():
            return
        store.delete(key)


def check_expires(expires_s: object) -> None:
    """Raise InvalidRequest if a presigned address cannot be valid for this many seconds."""
    if type(expires_s) is not int or not 1 <= expires_s <= _MAX_EXPIRES_S:
        limit = f"must be a whole number of seconds from 1 to {_MAX_EXPIRES_S:,}"
        raise InvalidRequest("expires_s", expires_s, limit)


def no_presigned_url(root: str) -> ConfigurationError:
    """Return the error of a store that has no presigned addresses."""
    return ConfigurationError(
        f"{root}: only images in S3 and Google Cloud Storage have presigned addresses"
    )


def check_round_trip(store: ObjectStore) -> None:
    """Write, read and delete a small object under a name of its own."""
    key, data = f"check-{uuid.uuid4().hex}", b"imagefleet was here"
    store.put(key, data, "text/plain")
    try:
        read = store.get(key, len(data))
    except (KeyError, InvalidRequest):
        read = b""
    if read != data:
        raise StorageUnavailable(f"{store.url} does not return what was just written to it")
    with suppress(StorageDenied):  # a worker needs no right to delete
        store.delete(key)
