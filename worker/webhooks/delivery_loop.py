"""The delivery loop: claim the messages of the outbox that are due, send them, record the outcomes.

Several workers run it on one outbox. If one dies, the messages that it held come due again.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

import redis

from imagefleet.shared.redis_client.write_errors import describe_failure
from imagefleet.shared.webhooks.outbox import BUSY_DELAY_S, Outbox
from imagefleet.shared.webhooks.outbox_message import (
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from imagefleet.worker.outbound.http_request import Admit
from imagefleet.worker.process import metrics
from imagefleet.worker.process.critical_thread import critical_thread
from imagefleet.worker.process.log_format import log_fields
from imagefleet.worker.process.tracing import add_delivery_span
from imagefleet.worker.webhooks.receiver_limits import MAX_SENDERS, NoPermit, Permit, SenderPermits
from imagefleet.worker.webhooks.retry_schedule import RETRY_DELAYS_S, retry_delay_s

log = logging.getLogger(__name__)

_RECEIVER_GONE: Final = DeliveryOutcome(
    verdict=DeliveryVerdict.GONE, reason="nothing is sent to this address since it answered 410"
)
_MAX_POLL_S: Final = 15.0
_POLL_PER_WORKER_S: Final = 1.0
"""The seconds between two looks of a worker are this number times the workers of the fleet: all
together look once a second. It looks at once for those that it has written."""
_LEASE_S: Final = 60.0
"""Longer than a try can last with a slow resolver."""
_REDIS_RETRY_S: Final = 2.0


def poll_s(workers: int, lanes: int = 1) -> float:
    """Return how long a worker pauses after it found no callback that is due in one of the lanes.

    In a large fleet it looks into all of them as often as into one.
    """
    return min(max(1, workers) * _POLL_PER_WORKER_S, _MAX_POLL_S * lanes)


class MessageSender(Protocol):
    """Sends one message."""

    def send(self, message: OutboxMessage, admit: Admit) -> DeliveryOutcome:
        """Send `message` once. Raise nothing for what the receiver does, only what `admit` does."""
        ...


class DeliveryLoop:
    """Delivers callbacks in threads of its own, from `start` to `stop`."""

    def __init__(
        self,
        outbox: Outbox,
        sender: MessageSender,
        delays_s: Sequence[float] = RETRY_DELAYS_S,
        count_workers: Callable[[], int] = lambda: 1,
        permits: SenderPermits | None = None,
        on_sender_free: Callable[[], None] | None = None,
        lanes: int = 1,
    ) -> None:
        """
        Args:
            count_workers: returns how many workers the fleet has, 0 while this one has no lease;
                they share the polling.
            permits: those that this loop shares with others. None: it has its own.
            on_sender_free: called when a sender has become free. None: only this loop is woken.
            lanes: how many lanes the fleet has. The outbox is of one of them.
        """
        self._outbox = outbox
        self._sender = sender
        self._delays_s = delays_s
        self._lanes = lanes
        self._count_workers = count_workers
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._permits = SenderPermits() if permits is None else permits
        self._on_sender_free = on_sender_free or self._wake.set
        self._thread = critical_thread(self._loop, "webhooks")

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Claim no more, and wait up to `timeout_s` for the messages being sent.

        Another worker sends the remaining ones again once they come due.
        """
        self._stopped.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def wake(self) -> None:
        """Look for callbacks at once: one was put into the outbox."""
        self._wake.set()

    def _deliver(self, message: OutboxMessage, permit: Permit) -> None:
        """Send one claimed message. Remove it from the outbox, or schedule its retry.

        Redis is asked once the sender is free again, so that an outbox that does not answer keeps
        no sender from another.
        """
        started = time.time()
        outcome: DeliveryOutcome | NoPermit
        try:
            outcome = self._sender.send(message, permit.at)
            permit.record(outcome)
        except NoPermit as refusal:
            outcome = refusal
        finally:
            permit.release()
            self._on_sender_free()
        if isinstance(outcome, NoPermit):
            self._outbox.postpone(message, outcome.delay_s)
            return
        tried = replace(message, attempts=message.attempts + 1)
        _add_span(tried, outcome, started)
        self._record(tried, outcome)

    def _record(self, tried: OutboxMessage, outcome: DeliveryOutcome) -> None:
        if tried.is_test:  # it is no callback of a job, so it is not counted and never repeated
            self._outbox.mark_delivered(tried, outcome)
            return
        metrics.CALLBACKS.labels(outcome.verdict).inc()
        if outcome.verdict is DeliveryVerdict.DELIVERED:
            self._outbox.mark_delivered(tried, outcome)
            return
        if outcome.verdict is DeliveryVerdict.GONE:
            self._outbox.disable(tried.url)
        delay_s = retry_delay_s(tried.attempts, self._delays_s, retry_after_s=outcome.retry_after_s)
        if outcome.verdict is DeliveryVerdict.RETRY and delay_s is not None:
            self._outbox.retry(tried, delay_s, outcome)
            log.info("callback %s: %s; retry in %.0f s", tried.id, outcome.description, delay_s)
        else:
            self._outbox.give_up(tried, outcome)
            log.warning("callback %s is given up: %s", tried.id, outcome.description)

    def _loop(self) -> None:
        with ThreadPoolExecutor(MAX_SENDERS, thread_name_prefix="callback") as pool:
            while not self._stopped.is_set():
                try:
                    claimed = self._claim_and_submit(pool)
                    pause_s = 0.0 if claimed else poll_s(self._count_workers(), self._lanes)
                except redis.RedisError as error:
                    log.warning("no callbacks are sent now: Redis %s", describe_failure(error))
                    self._stopped.wait(_REDIS_RETRY_S)
                    continue
                if not claimed:
                    self._wake.wait(pause_s)
                    self._wake.clear()

    def _claim_and_submit(self, pool: ThreadPoolExecutor) -> int:
        """Claim messages for senders that are free. Return how many there were."""
        with self._permits.reserving(self._wake.set) as free:
            if not free.claimable:
                return 0
            messages = self._outbox.claim(
                free.claimable,
                _LEASE_S,
                busy=free.busy,
                slow=free.slow,
                free=free.senders,
                max_slow=free.slow_senders,
                max_unproven=free.unproven_senders,
                search_every_s=max(1.0, self._count_workers()),
            )
            proven = self._outbox.answered_lately(message.receiver for message in messages)
            disabled = self._outbox.disabled_among(message.url for message in messages)
            for message in messages:
                if message.url in disabled and not message.is_test:
                    pool.submit(self._log_errors, self._give_up_disabled, message)
                    continue
                permit = self._permits.take(message.share, proven=message.receiver in proven)
                if permit is None:  # Redis knows fewer spellings of one receiver than we do
                    self._outbox.postpone(message, BUSY_DELAY_S)
                else:
                    pool.submit(self._log_errors, partial(self._deliver, permit=permit), message)
        return len(messages)

    def _give_up_disabled(self, message: OutboxMessage) -> None:
        self._outbox.give_up(message, _RECEIVER_GONE)

    def _log_errors(self, act: Callable[[OutboxMessage], None], message: OutboxMessage) -> None:
        with log_fields(job_id=message.job_id or None):
            try:
                act(message)
            except redis.RedisError as error:
                log.warning("callback %s will be tried again: %s", message.id, error)
            except Exception:
                log.exception("callback %s will be tried again", message.id)


def _add_span(tried: OutboxMessage, outcome: DeliveryOutcome, started: float) -> None:
    """Add the span of a try. It names no address and no text of the receiver."""
    delivered = outcome.verdict is DeliveryVerdict.DELIVERED
    add_delivery_span(
        tried.trace_parent,
        started,
        time.time(),
        error=None if delivered else outcome.verdict,
        job=tried.job_id,
        callback=tried.id,
        attempt=tried.attempts,
        tenant=tried.tenant or None,
        status=outcome.status,
    )
