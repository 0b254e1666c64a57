"""Renew this process's lease, reclaim expired leases, requeue what is orphaned or due, and sweep
queues.

One thread does only this, so that no batch, upload or drain can make a living worker look dead.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import redis

from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.redis_client.write_errors import describe_failure, is_outage
from imagefleet.worker.process import metrics
from imagefleet.worker.process.critical_thread import critical_thread
from imagefleet.worker.process.systemd import notify_systemd
from imagefleet.worker.queues.claims import Claims

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE: Final = 4
_RECOVERIES_PER_HEARTBEAT: Final = 5.0
"""Workers of the fleet that look for expired leases and due messages, on average, between two of
their heartbeats. One would be enough; of five on average, all are late once in 150 heartbeats."""
_EXPIRY_MARGIN_S: Final = 0.05
"""Seconds after which a lease that expires now has certainly expired, by the clock of Redis."""
_SWEEPS_PER_HEARTBEAT: Final = 0.25
"""Workers that sweep queues. A sweep of a long queue takes Redis 2 ms, and nothing waits for it."""
_NOT_RENEWED: Final = "the lease of this worker is not renewed: Redis %s"


class StatusReport(Protocol):
    """What a worker says of itself with each heartbeat."""

    def status(self) -> str:
        """Return the status, as `WorkerStatus.dump` writes it."""
        ...

    def on_status_stored(self, *, drain_requested: bool) -> None:
        """Note that the status is stored, and whether somebody asked this worker to drain."""
        ...


class LeaseKeeper:
    """The lease keeper renews the lease of this worker from `start` to `stop`."""

    def __init__(
        self,
        claims: Claims,
        records: JobRecords,
        lease_s: float,
        on_lost: Callable[[], None],
        attended_tags: Callable[[], set[str]] | None = None,
        report: StatusReport | None = None,
        renew_offers: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            on_lost: called if the lease expired since the worker joined, before a new one is
                acquired.
            attended_tags: returns the tags of the claims that the worker attends to; None: of all.
            report: says with each heartbeat what the worker does.
            renew_offers: called at each heartbeat, to keep the fleet from forgetting the model.
        """
        self._claims = claims
        self._records = records
        self._on_lost = on_lost
        self._report = report
        self._renew_offers = renew_offers or (lambda: None)
        self._attended_tags = attended_tags or claims.held_tags
        self._left_out = 0
        """Heartbeats that were left out since the latest one, because the lease rested."""
        self._heartbeats = 1
        """How many heartbeats the latest one stands for."""
        self._unattended: dict[str, float] = {}
        """By tag: when a claim was first seen that the worker does not attend to."""
        self._lease_s = lease_s
        self._heartbeat_s = lease_s / RENEWALS_PER_LEASE
        self._stopped = threading.Event()
        self._reclaim_from = self._grace_period_end()
        self._thread = critical_thread(self._loop, "lease keeper")

    def start(self) -> None:
        """Take over the lease that the worker got when it joined the fleet, or acquire that of
        another lane. If Redis does not answer, a later heartbeat does it."""
        try:
            self._take_over()
        except redis.RedisError as error:
            log.warning(_NOT_RENEWED, describe_failure(error))
        self._thread.start()

    def _take_over(self) -> None:
        """Renew the lease. Redis may have been emptied meanwhile, and has lost the offers, too."""
        if not self._claims.lease.renew(self._status()):
            self._on_lost()
            self._claims.lease.acquire(self._status())
        self._reported()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Renew the lease no more, and wait up to `timeout_s` for the heartbeat that goes on."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _loop(self) -> None:
        pause_s = self._heartbeat_s
        while not self._stopped.wait(pause_s):
            notify_systemd("WATCHDOG=1")  # also while Redis is away: the worker waits for it
            pause_s = self._heartbeat_s
            try:
                expiry_s = self._next_expiry_s() if self.heartbeat() else None
                if expiry_s is not None:
                    if self._stopped.wait(expiry_s):
                        return
                    pause_s -= expiry_s
                    self._attempt(self._reclaim_expired)
            except redis.RedisError as error:
                self._reclaim_from = self._grace_period_end()
                log.warning(_NOT_RENEWED, describe_failure(error))

    def _next_expiry_s(self) -> float | None:
        """Return after how many seconds this worker should look for an expired lease; None if there
        will be none before the next heartbeat, or if others look.

        So a dead worker's jobs do not wait for the next heartbeat of another one.
        """
        lease = self._claims.lease
        expiry_s = lease.next_expiry_s + _EXPIRY_MARGIN_S
        if expiry_s < self._heartbeat_s and self._is_due_here(_RECOVERIES_PER_HEARTBEAT):
            return expiry_s
        return None

    def _is_due_here(self, per_heartbeat: float) -> bool:
        """Return whether this worker is among the `per_heartbeat` that a fleet needs on average."""
        return random.random() * self._claims.lease.workers < per_heartbeat * self._heartbeats

    def _grace_period_end(self) -> float:
        """Return when reclaiming may begin: after an outage of Redis the other workers need time to
        renew first. A start may follow such an outage too."""
        return time.monotonic() + 2 * self._heartbeat_s

    def heartbeat(self) -> bool:
        """Renew the lease once, and recover what is lost or due. The thread calls this. Return
        False if the lease rests."""
        if self._claims.lease.rests and not self._claims.held_tags():
            self._left_out += 1
            return False
        self._heartbeats, self._left_out = self._left_out + 1, 0
        if self._heartbeats > 1:  # this worker has not seen whether Redis was away meanwhile
            self._reclaim_from = self._grace_period_end()
        if not self._claims.lease.was_held:
            self._take_over()
            return True
        # The status is renewed with each heartbeat, and its lease never rests.
        if self._claims.lease.renew(self._status(), may_rest=self._report is None):
            metrics.LEASE_RENEWALS.inc()
        else:
            log.error("the lease ran out while this host was frozen; other workers have its jobs")
            metrics.LEASES_LOST.inc()
            self._on_lost()
            self._claims.lease.acquire(self._status())
        self._reported()
        for step in (self._abandon_unattended, self._requeue_orphans, self._renew_offers):
            self._attempt(step)
        self._recover_for_fleet()
        return True

    def _status(self) -> str:
        return "" if self._report is None else self._report.status()

    def _reported(self) -> None:
        if self._report is not None:
            self._report.on_status_stored(drain_requested=self._claims.lease.drain_requested)

    def _recover_for_fleet(self) -> None:
        """Do this worker's share of what any worker can do: if each did it at each heartbeat, it
        would cost Redis time that grows with the square of their number. The renewal has said
        whether there is anything to recover."""
        sweeps = self._is_due_here(_SWEEPS_PER_HEARTBEAT)
        if self._is_due_here(_RECOVERIES_PER_HEARTBEAT):
            if self._claims.lease.any_expired or sweeps:
                self._attempt(self._reclaim_expired)
            if self._claims.lease.any_due:
                # The next heartbeat goes on with what is left: the lease must be renewed in time.
                self._attempt(partial(self._records.requeue_due, self._heartbeat_s / 2))
        if sweeps:
            self._attempt(self._sweep_queues)

    def _attempt(self, step: Callable[[], object]) -> None:
        """Call one step. Damaged data in Redis must not stop the other steps."""
        try:
            step()
        except redis.ResponseError as error:
            if is_outage(error):
                raise
            log.exception("a step of the heartbeat failed")

    def _requeue_orphans(self) -> None:
        tags = self._claims.lease.tags_at_renewal
        if tags is not None and tags <= self._claims.held_tags():
            return  # else some may just be claimed or released: Redis is asked again
        if orphans := self._claims.requeue_orphans():
            log.warning("requeued orphaned claims of this worker: messages: %d", orphans)

    def _reclaim_expired(self) -> None:
        if time.monotonic() >= self._reclaim_from:
            for worker, messages in self._claims.lease.reclaim_expired():
                log.warning("the lease of worker %s expired; requeued: %d", worker, messages)
                metrics.RECLAIMED.inc(messages)

    def _sweep_queues(self) -> None:
        _, dropped = self._records.sweep_queues()
        if dropped:
            log.info("dropped messages of jobs that have ended: %d", dropped)

    def _abandon_unattended(self) -> None:
        """Abandon claims that the worker has not attended to for the length of a lease.

        There should be none. But a living worker would hold such a message for ever.
        """
        now = time.monotonic()
        tags = self._claims.held_tags() - self._attended_tags()
        self._unattended = {tag: self._unattended.get(tag, now) for tag in tags}
        overdue = [tag for tag, since in self._unattended.items() if now - since >= self._lease_s]
        if overdue:
            log.error(
                "requeued claims that no thread of this worker processed; this is an internal "
                "error: %s",
                ", ".join(overdue),
            )
            self._claims.abandon(overdue)
