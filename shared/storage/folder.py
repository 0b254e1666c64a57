"""An object store in a folder of a local or mounted file system.

A put is atomic and durable: temporary file in the same folder, fsync, rename, fsync of the folder.
A reader sees the old object or the new one, never a part, also after a power cut.
"""

import errno
import io
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import Final

from shared.errors import StorageDenied, StorageUnavailable
from shared.storage.base import StoredObject, check_key, prove, stored, stored_file

_CHUNK_BYTES: Final = 1 << 20
_WHY_DENIED: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "no right to write there",
    errno.EPERM: "no right to write there",
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
            _make_folder(path.parent)
            try:
                _write_through(temporary, source)
                temporary.replace(path)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
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
            for at, _, names in os.walk(start):
                for name in names:
                    key = Path(at, name).relative_to(self._root).as_posix()
                    if key.startswith(prefix) and not name.startswith("."):
                        yield key

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _clear_errors(f"cannot delete {path}"):
            path.unlink(missing_ok=True)

    def check(self) -> None:
        prove(self)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)


def _make_folder(folder: Path) -> None:
    """`mkdir -p`, durable: a synced file in a folder that a power cut forgets is lost too."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
        _sync_folder(folder.parent)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def _write_through(path: Path, source: BufferedIOBase) -> None:
    with path.open("xb") as file:
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
