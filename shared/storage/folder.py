"""An object store in a folder of a local or mounted file system.

A put is atomic and durable: temporary file in the same folder, fsync, rename, fsync of the folder.
A reader sees the old object or the new one, never a part, also after a power cut.
A folder goes with its last object.
"""

import errno
import io
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO, Final

from imagefleet.shared.errors import StorageDenied, StorageUnavailable
from imagefleet.shared.storage.base import StoredObject, check_key, prove, stored, stored_file

_CHUNK_BYTES: Final = 1 << 20
_TRIES: Final = 5
"""To create a file beside those who delete others in its folder."""
_WHY_DENIED: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "no right to do so",
    errno.EPERM: "no right to do so",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EEXIST: "a file stands where a folder is needed",
    errno.EISDIR: "a folder stands where the file belongs",
    errno.ENAMETOOLONG: "the file system cannot hold so long a name",
}
"""Anything else (EIO, ESTALE, too many open files …) may pass."""


class FolderStore:
    """Objects are files under `root`, with the key as their path."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.url = f"{self._root.as_uri()}/"

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        self._put(key, io.BytesIO(data))
        return stored(self.url, key, data)

    def put_file(self, key: str, source: BufferedIOBase, content_type: str) -> StoredObject:
        done = stored_file(self.url, key, source)
        self._put(key, source)
        return done

    def _put(self, key: str, source: BufferedIOBase) -> None:
        path = self._path(key)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with _clear_errors(f"cannot store {path}"):
            file = _create(temporary)
            try:
                _write_through(file, source)
                temporary.replace(path)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
            with suppress(FileNotFoundError):  # the object was deleted since, and its folder
                _sync_folder(path.parent)

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with _clear_errors(f"cannot read {path}"):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                raise KeyError(key) from None

    def exists(self, key: str) -> bool:
        path = self._path(key)
        with _clear_errors(f"cannot look at {path}"):
            return path.is_file()

    def list(self, prefix: str = "") -> Iterator[str]:
        folder = prefix.rpartition("/")[0]
        start = self._path(folder) if folder else self._root
        with _clear_errors(f"cannot list {start}"):
            for at, _, names in os.walk(start, onerror=_pass_by_the_gone):
                for name in names:
                    key = Path(at, name).relative_to(self._root).as_posix()
                    if key.startswith(prefix) and not name.startswith("."):
                        yield key

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _clear_errors(f"cannot delete {path}"):
            path.unlink(missing_ok=True)
        self._remove_empty(path.parent)

    def delete_below(self, folder: str) -> None:
        path = self._path(folder)
        with _clear_errors(f"cannot delete {path}"):
            for at, _, names in os.walk(path, topdown=False, onerror=_pass_by_the_gone):
                for name in names:
                    Path(at, name).unlink(missing_ok=True)
                self._remove_empty(Path(at))

    def check(self) -> None:
        prove(self)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _remove_empty(self, folder: Path) -> None:
        """Take away `folder` and those above it, below the root, that hold nothing any more."""
        with suppress(OSError):  # not empty, or another was faster
            while folder != self._root:
                folder.rmdir()
                folder = folder.parent


def _pass_by_the_gone(error: OSError) -> None:
    """What cannot be listed must not look empty: whoever finds nothing there makes it again."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _create(path: Path) -> BinaryIO:
    """A new file. Whoever deletes the last object in its folder takes that away meanwhile."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            _make_folder(path.parent)
            return path.open("xb")
    return path.open("xb")


def _make_folder(folder: Path) -> None:
    """`mkdir -p`, durable: a synced file in a folder that a power cut forgets is lost too."""
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
        shutil.copyfileobj(source, file, _CHUNK_BYTES)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _clear_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if why := _WHY_DENIED.get(error.errno or 0):
            raise StorageDenied(f"{what}: {why}") from error
        raise StorageUnavailable(f"{what}: {error.strerror or error}") from error
