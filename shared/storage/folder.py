"""Store objects in a folder of a local or mounted file system.

A put is atomic and durable: it writes a temporary file in the same folder, syncs it, renames it and
syncs the folder. A reader sees the old object or the new one, never a part, also after a power cut.
A folder is removed with its last object.
"""

import errno
import io
import logging
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO, Final

from imagefleet.shared.errors import StorageDenied, StorageUnavailable
from imagefleet.shared.storage.base import (
    StoredObject,
    always,
    check_key,
    check_round_trip,
    check_size,
    describe_file,
    describe_object,
    no_presigned_url,
)
from imagefleet.shared.storage.regular_files import NotARegularFile, open_regular

log = logging.getLogger(__name__)

_BUFFER_BYTES: Final = 1 << 20
_MAX_CREATE_RETRIES: Final = 5
"""Retries to create a file in a folder that others may remove with its last object."""
_DENIED_REASONS: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "this user has no right to do so",
    errno.EPERM: "this user has no right to do so",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "there is a file where a folder is needed",
    errno.EEXIST: "there is a file where a folder is needed",
    errno.EISDIR: "there is a folder where the file belongs",
    errno.ENAMETOOLONG: "the file system cannot hold so long a name",
}
"""All other errors (EIO, ESTALE, too many open files …) may be temporary."""
_MISSING_ERRORS: Final = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)
"""If a read fails with one of these errors, there is no object with this key."""


class FolderStore:
    """This store keeps its objects as files under `root`, with the key as their path."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.url = f"{self._root.as_uri()}/"

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        self._put(key, io.BytesIO(data))
        return describe_object(self.url, key, data)

    def put_file(self, key: str, source: BufferedIOBase, content_type: str) -> StoredObject:
        description = describe_file(self.url, key, source)
        self._put(key, source)
        return description

    def _put(self, key: str, source: BufferedIOBase) -> None:
        path = self._path(key)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with _translate_errors(f"cannot store {path}"):
            file = _create(temporary)
            try:
                _write_through(file, source)
                temporary.replace(path)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
            with suppress(FileNotFoundError):  # the object and its folder were deleted meanwhile
                _sync_folder(path.parent)

    def get(self, key: str, max_bytes: int | None = None) -> bytes:
        with self._open(key) as file:
            check_size(key, os.fstat(file.fileno()).st_size, max_bytes)
            return file.read()

    def get_file(self, key: str, target: BinaryIO) -> None:
        with self._open(key) as file:
            shutil.copyfileobj(file, target, _BUFFER_BYTES)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._open(key) as file:
            file.seek(start)
            return file.read(length)

    @contextmanager
    def _open(self, key: str) -> Iterator[BinaryIO]:
        """Open an object for reading. Raise KeyError if it does not exist."""
        path = self._path(key)
        with _translate_errors(f"cannot read {path}"):
            try:
                with open_regular(path) as file:
                    yield file
            except NotARegularFile as error:
                log.warning("%s %s; it counts as missing", path, error.strerror)
                raise KeyError(key) from None
            except OSError as error:
                if error.errno in _MISSING_ERRORS:
                    raise KeyError(key) from None
                raise

    def exists(self, key: str) -> bool:
        path = self._path(key)
        with _translate_errors(f"cannot check {path}"):
            try:
                return stat.S_ISREG(path.stat().st_mode)
            except OSError as error:
                if error.errno in _MISSING_ERRORS:
                    return False
                raise

    def list(self, prefix: str = "") -> Iterator[str]:
        folder = prefix.rpartition("/")[0]
        start = self._path(folder) if folder else self._root
        with _translate_errors(f"cannot list {start}"):
            for at, _, names in os.walk(start, onerror=_ignore_missing_folder):
                for name in names:
                    key = Path(at, name).relative_to(self._root).as_posix()
                    if key.startswith(prefix) and not name.startswith("."):
                        yield key

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _translate_errors(f"cannot delete {path}"):
            path.unlink(missing_ok=True)
        self._remove_empty(path.parent)

    def delete_below(self, folder: str, may_delete: Callable[[], bool] = always) -> None:
        path = self._path(folder)
        with _translate_errors(f"cannot delete {path}"):
            for at, _, names in os.walk(path, topdown=False, onerror=_ignore_missing_folder):
                for name in names:
                    if not may_delete():
                        return
                    Path(at, name).unlink(missing_ok=True)
                self._remove_empty(Path(at))

    def presigned_url(self, key: str, expires_s: int) -> str:
        raise no_presigned_url(self.url)

    def check(self) -> None:
        check_round_trip(self)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _remove_empty(self, folder: Path) -> None:
        """Remove `folder` and its parents below the root, as far as they are empty."""
        with suppress(OSError):  # the folder is not empty, or another process removed it
            while folder != self._root:
                folder.rmdir()
                folder = folder.parent


def _ignore_missing_folder(error: OSError) -> None:
    """Raise all other errors: a caller that sees an empty folder would create the objects again."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _create(path: Path) -> BinaryIO:
    """Create a file and its folder. Another process may remove the folder in between."""
    for _ in range(_MAX_CREATE_RETRIES):
        with suppress(FileNotFoundError):
            _make_folder(path.parent)
            return path.open("xb")
    return path.open("xb")


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents durably.

    Without a sync of the parents, a power cut could lose the folder with the synced files in it.
    """
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
        _sync_folder(folder.parent)
    if not stat.S_ISDIR(folder.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def _write_through(file: BinaryIO, source: BufferedIOBase) -> None:
    with file:
        shutil.copyfileobj(source, file, _BUFFER_BYTES)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    """Map OSError inside the block to StorageDenied or StorageUnavailable."""
    try:
        yield
    except OSError as error:
        if why := _DENIED_REASONS.get(error.errno or 0):
            raise StorageDenied(f"{what}: {why}") from error
        raise StorageUnavailable(f"{what}: {error.strerror or error}") from error
