"""Give the images and latents that rows start from addresses that workers can read; upload files.

Input: what a row holds as `image`, `mask_image` or `latents`. Output: an address or a key of the
fleet's store. Files are uploaded under their digest while further rows are read, once for each
content.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self, TypeVar

from imagefleet.producer.connection.input_images import (
    CheckedImage,
    check_image,
    path_or_address,
    put_image,
)
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage import ObjectStore

K = TypeVar("K")
V = TypeVar("V")

Resolve = Callable[[str, str], str | bytes]
"""It takes a field and the text in it, and returns an address that the writer of the text may read,
a key, or a file. It raises InvalidRequest for another text."""

_UPLOADERS: Final = 8
_MAX_REMEMBERED: Final = 100_000
"""Files and contents that are remembered as uploaded, a few hundred bytes each."""


class RowImages:
    """The images and latents of the rows of one plan. They are checked; files are not uploaded."""

    def __init__(self, *, read_files: bool, resolve: Resolve | None = None) -> None:
        """
        Args:
            read_files: whether a text that begins like a path names a file of this host. Otherwise
                it is an address or a key, as everywhere in Python.
            resolve: is called with each text, if a stranger may have written it.
        """
        self._read_files = read_files
        self._resolve = resolve
        self._keys: _Recent[tuple[bool, str, int, int], str] = _Recent()
        """Keys of files, by whether they hold latents, path, time of change in ns and size in
        bytes."""

    def address(self, field: str, image: object, folder: Path | None) -> str:
        """Return the address of an image or of latents, or the key under which it is uploaded.

        Args:
            folder: see `TableSource.folder`.
            image: an address, a key, or, with `read_files`, a path, relative to `folder`; or what
                `Client.submit` uploads; or a mapping with `bytes` or `path`, as Hugging Face
                datasets hold images.

        Raises:
            InvalidRequest: it cannot be read, is too large, or no file that `field` takes.
            StorageDenied, StorageUnavailable: an earlier image could not be uploaded.
        """
        if isinstance(image, Mapping):
            content = image.get("bytes")
            image = image.get("path") if content is None else content
        if isinstance(image, str) and self._read_files and folder is not None:
            image = path_or_address(field, image, folder)
        if isinstance(image, str) and self._resolve is not None:
            image = self._resolve(field, image)
        if isinstance(image, str):
            return image
        if isinstance(image, Path):
            return self._key_of_file(field, (folder or Path()) / image)
        return self._key_of(check_image(field, image))

    def finish(self) -> None:
        """Wait for all uploads. Raise the error of the first that failed."""

    def _key_of_file(self, field: str, path: Path) -> str:
        try:
            stat = path.stat()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "cannot be read"
            raise InvalidRequest(field, str(path), reason) from None
        seen = (field == "latents", str(path), stat.st_mtime_ns, stat.st_size)
        if seen not in self._keys:
            self._keys.add(seen, self._key_of(check_image(field, path)))
        return self._keys[seen]

    def _key_of(self, image: CheckedImage) -> str:
        return image.key


class UploadedRowImages(RowImages):
    """The images and latents of the rows of one plan; files are uploaded. Use it as a context
    manager."""

    def __init__(
        self,
        open_store: Callable[[], ObjectStore],
        *,
        read_files: bool,
        resolve: Resolve | None = None,
    ) -> None:
        """
        Args:
            open_store: opens the store to which files are uploaded, at the first of them.
            read_files, resolve: see `RowImages`.
        """
        super().__init__(read_files=read_files, resolve=resolve)
        self._open_store = open_store
        self._store: ObjectStore | None = None
        self._uploaded: _Recent[str, None] = _Recent()
        self._threads = ThreadPoolExecutor(_UPLOADERS, thread_name_prefix="upload")
        self._free_slots = threading.BoundedSemaphore(_UPLOADERS)  # each holds up to 20 MB
        self._failed: BaseException | None = None

    def finish(self) -> None:
        self._threads.shutdown()
        if self._failed is not None:
            raise self._failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _key_of(self, image: CheckedImage) -> str:
        if self._failed is not None:
            raise self._failed
        if self._store is None:
            self._store = self._open_store()
        if image.key not in self._uploaded:
            self._uploaded.add(image.key, None)
            self._free_slots.acquire()
            self._threads.submit(self._put, self._store, image)
        return image.key

    def _put(self, store: ObjectStore, image: CheckedImage) -> None:
        try:
            put_image(store, image)
        except BaseException as error:
            self._failed = self._failed or error
        finally:
            self._free_slots.release()


class _Recent(OrderedDict[K, V]):
    """A dictionary that forgets its oldest entries."""

    def add(self, key: K, value: V) -> None:
        self[key] = value
        if len(self) > _MAX_REMEMBERED:
            self.popitem(last=False)
