"""Keep this process's lease alive, and put back what dead workers left and what is due again.

One thread with nothing else to do, so that no batch, upload or drain can make a living worker look
dead.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import redis

from imagefleet.shared.jobs.records import JobRecords
from imagefleet.worker.process.critical_thread import critical_thread
from imagefleet.worker.queues.claims import Claims

log = logging.getLogger(__name__)

_RENEWALS_A_LEASE: Final = 4


class LeaseKeeper:
    """Starts with the first lease, ends with `stop`."""

    def __init__(
        self, claims: Claims, records: JobRecords, lease_s: float, on_lost: Callable[[], None]
    ) -> None:
        """`on_lost` is told when the lease ran out, before there is another."""
        self._claims = claims
        self._records = records
        self._on_lost = on_lost
        self._pause_s = lease_s / _RENEWALS_A_LEASE
        self._stopped = threading.Event()
        self._sweep_from = self._after_a_grace()
        self._thread = critical_thread(self._loop, "keeper")

    def start(self) -> None:
        self._claims.acquire_lease()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def _loop(self) -> None:
        while not self._stopped.wait(self._pause_s):
            try:
                self._tend()
            except redis.RedisError as error:
                self._sweep_from = self._after_a_grace()
                log.warning("Redis does not answer the lease keeper: %s", error)

    def _after_a_grace(self) -> float:
        """When to sweep: others could not renew either while Redis was away, which may be why this
        process has only just started."""
        return time.monotonic() + 2 * self._pause_s

    def _tend(self) -> None:
        if not self._claims.renew():
            log.error("the lease ran out while this host stood still; its jobs went elsewhere")
            self._on_lost()
            self._claims.acquire_lease()
        if strays := self._claims.requeue_orphans():
            log.warning("back in the queue, as nobody here works on them: messages: %d", strays)
        if time.monotonic() >= self._sweep_from:
            for worker, messages in self._claims.reclaim_expired():
                log.warning("worker %s is dead; messages back in the queue: %d", worker, messages)
        self._records.bring_back()
