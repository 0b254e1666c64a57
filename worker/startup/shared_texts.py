"""Share encoded texts between hosts through an object store, without waiting for it for long.

Input: a store, and contents by name. Output: contents that are whole. This module does not know
what is in them.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from queue import SimpleQueue
from threading import BoundedSemaphore, Thread
from typing import Any, Final

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.process import metrics

log = logging.getLogger(__name__)

_DEADLINE_S: Final = 1.0
_PAUSE_S: Final = 30.0
_READERS: Final = 16
_WRITERS: Final = 4
_MAX_WRITES: Final = 16
"""At most this many contents wait to be written. One has up to 25 MB."""
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_MEDIA_TYPE: Final = "application/octet-stream"


class SharedTexts:
    """It implements `TextStore`. Threads may share it.

    After a read that failed or was late, and after a write that failed, the store is left alone for
    a while: so one that hangs costs the devices one deadline, and then nothing until the pause
    ends.
    """

    def __init__(
        self,
        store: ObjectStore,
        deadline_s: float = _DEADLINE_S,
        pause_s: float = _PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            deadline_s: The time of one `get`.
            pause_s: The time for which the store is left alone after a fault.
            clock: Returns seconds.
        """
        self._store: Final = store
        self._deadline_s: Final = deadline_s
        self._pause_s: Final = pause_s
        self._clock: Final = clock
        self._paused_until = -float("inf")
        self._readers: Final = _Threads(_READERS, "read-texts")
        self._writers: Final = _Threads(_WRITERS, "write-texts")
        self._free_writes: Final = BoundedSemaphore(_MAX_WRITES)

    def get(self, names: Sequence[str], size: int) -> Mapping[str, bytes]:
        if self._paused:
            return {}
        reads = {self._readers.submit(partial(self._read, name, size)): name for name in names}
        done, late = wait(reads, self._deadline_s)
        if late:
            for read in late:
                read.cancel()
            fault = f"it did not return {len(late)} of {len(reads)} within {self._deadline_s} s"
            self._pause("late", len(late), fault)
        contents = {reads[read]: read.result() for read in done}
        return {name: content for name, content in contents.items() if content is not None}

    def put(self, name: str, content: bytes) -> None:
        if self._paused or not self._free_writes.acquire(blocking=False):
            metrics.TEXT_STORE_FAULTS.labels("busy").inc()
            return
        self._writers.submit(partial(self._write, name, content))

    @property
    def _paused(self) -> bool:
        return self._clock() < self._paused_until

    def _pause(self, kind: str, count: int, fault: object) -> None:
        metrics.TEXT_STORE_FAULTS.labels(kind).inc(count)
        if not self._paused:
            log.warning(
                "encoded texts at %s are left alone for %.0f s: %s",
                self._store.url,
                self._pause_s,
                fault,
            )
        self._paused_until = self._clock() + self._pause_s

    def _read(self, name: str, size: int) -> bytes | None:
        """Return a whole content, or None. This must not raise: no fault may fail a job."""
        try:
            stored = self._store.get(name, _DIGEST_BYTES + size)
        except KeyError:
            return None
        except InvalidRequest:
            stored = b""  # it is too large
        except Exception as error:
            self._pause("read", 1, error)
            return None
        digest, content = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
        if len(content) == size and digest == _digest(name, content):
            return content
        metrics.TEXT_STORE_FAULTS.labels("damaged").inc()
        log.warning("the encoded text %s is damaged, encoding it again", self._store.url + name)
        return None

    def _write(self, name: str, content: bytes) -> None:
        try:
            self._store.put(name, _digest(name, content) + content, _MEDIA_TYPE)
        except Exception as error:
            self._pause("write", 1, error)
        finally:
            self._free_writes.release()


class _Threads:
    """They make calls that raise nothing, and end with the process, even if the store hangs: those
    of an executor would keep it from ending."""

    def __init__(self, count: int, name: str) -> None:
        self._calls: Final[SimpleQueue[tuple[Future[Any], Callable[[], Any]]]] = SimpleQueue()
        for _ in range(count):
            Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, act: Callable[[], Any]) -> Future[Any]:
        called: Future[Any] = Future()
        self._calls.put((called, act))
        return called

    def _run(self) -> None:
        while True:
            called, act = self._calls.get()
            if called.set_running_or_notify_cancel():
                called.set_result(act())


def _digest(name: str, content: bytes) -> bytes:
    """Digest the name too, so that one text cannot stand for another."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()
