"""Probe a store that failed, so that this host claims shards again as soon as it can be written.

Input: a store, and how much it failed to take. Output: the end of the pause in which this host
claims no shard. Only a store that fails in the pause and works again later ends it: if a small
object can be stored all the time, the store has room for it alone.
"""

import logging
import os
import threading
import time
from contextlib import suppress
from typing import Final

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.devices.row_backlog import RowBacklog

log = logging.getLogger(__name__)

_EVERY_S: Final = 2.0
_MIN_BYTES: Final = 4 << 10
_MAX_BYTES: Final = 16 << 20


class StoreProbe:
    """Probes the stores of one worker, each in a thread of its own: a store may block forever."""

    def __init__(self, backlog: RowBacklog, every_s: float = _EVERY_S) -> None:
        self._backlog = backlog
        self._every_s = every_s
        self._probed: set[str] = set()
        self._lock = threading.Lock()

    def watch(self, store: ObjectStore, folder: str, size: int) -> None:
        """Probe `store` while the backlog makes a pause, and end the pause once it works again.

        Args:
            folder: The object lies here, and is deleted with it if this process dies.
            size: the bytes that the store failed to take. A probe has at most 16 MiB.
        """
        with self._lock:
            if store.url in self._probed:
                return
            self._probed.add(store.url)
        data = os.urandom(min(max(size, _MIN_BYTES), _MAX_BYTES))
        key = f"{folder}/probe-{os.urandom(8).hex()}"
        thread = threading.Thread(
            target=self._watch, args=(store, key, data), name="store-probe", daemon=True
        )
        thread.start()

    def _watch(self, store: ObjectStore, key: str, data: bytes) -> None:
        try:
            has_failed = False
            while self._backlog.is_in_pause():
                works = _can_store(store, key, data)
                if works and has_failed:
                    log.warning("%s can be written again: this worker claims shards", store.url)
                    self._backlog.end_pause()
                    return
                has_failed |= not works
                time.sleep(self._every_s)
        finally:
            with self._lock:
                self._probed.discard(store.url)


def _can_store(store: ObjectStore, key: str, data: bytes) -> bool:
    try:
        store.put(key, data, "application/octet-stream")
    except ImagefleetError:
        return False
    finally:
        with suppress(ImagefleetError):
            store.delete(key)
    return True
