"""Read an object of a store as a file, of which only some ranges are fetched."""

import io
from typing import cast

from imagefleet.shared.bulk.file_layout import MAX_BINARY_BYTES
from imagefleet.shared.storage import ObjectStore


class RangeFile(io.RawIOBase):
    """An object of a store is read like a file, at any position."""

    def __init__(
        self, store: ObjectStore, key: str, size: int, max_bytes: int = MAX_BINARY_BYTES
    ) -> None:
        """
        Args:
            size: the bytes of the object, or more if it is not known.
            max_bytes: ValueError is raised before more are read in all.
        """
        super().__init__()
        self._store, self._key, self._size = store, key, size
        self._at = 0
        self._left = self._max_bytes = max_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast(bytearray, buffer))
        length = min(len(view), self._size - self._at)
        if length <= 0:
            return 0
        if length > self._left:
            raise ValueError(f"{self._key}: more than {self._max_bytes:,} bytes hold its samples")
        self._left -= length
        data = self._store.get_range(self._key, self._at, length)
        view[: len(data)] = data
        self._at += len(data)
        if len(data) < length:
            self._size = self._at
        return len(data)
