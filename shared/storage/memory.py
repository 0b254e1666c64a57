"""Store objects in memory, for tests and experiments."""

import threading
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from typing import BinaryIO

from imagefleet.shared.storage.base import (
    StoredObject,
    always,
    check_key,
    check_round_trip,
    check_size,
    delete_each,
    describe_object,
    no_presigned_url,
)


class MemoryStore:
    """This store keeps objects in the memory of its process. They are lost when it ends."""

    url = "memory://"

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        with self._lock:
            self._objects[check_key(key)] = bytes(data)
        return describe_object(self.url, key, data)

    def put_file(self, key: str, source: BufferedIOBase, content_type: str) -> StoredObject:
        source.seek(0)
        return self.put(key, source.read(), content_type)

    def get(self, key: str, max_bytes: int | None = None) -> bytes:
        data = self._objects[check_key(key)]
        check_size(key, len(data), max_bytes)
        return data

    def get_file(self, key: str, target: BinaryIO) -> None:
        target.write(self.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def exists(self, key: str) -> bool:
        return check_key(key) in self._objects

    def list(self, prefix: str = "") -> Iterator[str]:
        with self._lock:
            keys = sorted(self._objects)
        return (key for key in keys if key.startswith(prefix))

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def delete_below(self, folder: str, may_delete: Callable[[], bool] = always) -> None:
        delete_each(self, folder, may_delete)

    def presigned_url(self, key: str, expires_s: int) -> str:
        raise no_presigned_url(self.url)

    def check(self) -> None:
        check_round_trip(self)
