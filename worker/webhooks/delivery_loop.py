"""The loop that empties the outbox: claim what is due, send it, settle what came of it.

Several workers run it on one outbox. What one of them held when it died comes due again.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol

import redis

from imagefleet.shared.webhooks.messages import DeliveryOutcome, DeliveryVerdict, OutboxMessage
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.worker.process.critical_thread import critical_thread
from imagefleet.worker.webhooks.backoff import PAUSES, pause_after

log = logging.getLogger(__name__)

SENDERS: Final = 16
"""Callbacks on their way at a time, a worker. Half of them at most to one receiver."""

_LEFT_ALONE: Final = DeliveryOutcome(
    verdict=DeliveryVerdict.GONE, reason="left alone since it answered 410"
)
_POLL_S: Final = 0.25
_LEASE_S: Final = 60.0
"""Longer than a try can last, with a slow resolver."""
_SLOW_S: Final = 600.0
"""How long a receiver that did not answer has one place only, unless it answers."""
_REDIS_PAUSE_S: Final = 2.0


class Sends(Protocol):
    """What a courier needs of a sender."""

    def send(self, message: OutboxMessage) -> DeliveryOutcome: ...


class DeliveryLoop:
    """Delivers until told to stop."""

    def __init__(self, outbox: Outbox, sender: Sends, pauses: Sequence[float] = PAUSES) -> None:
        self._outbox = outbox
        self._sender = sender
        self._pauses = pauses
        self._stopped = threading.Event()
        self._freed = threading.Event()
        self._busy: Counter[str] = Counter()
        self._slow: dict[str, float] = {}
        self._lock = threading.Lock()
        self._thread = critical_thread(self._loop, "courier")

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience_s: float = 2.0) -> None:
        """Claim no more. What is on its way and takes longer is sent again by another worker."""
        self._stopped.set()
        self._freed.set()
        if self._thread.ident is not None:
            self._thread.join(patience_s)

    def deliver(self, message: OutboxMessage) -> None:
        """One message, from its claim to the outbox again or out of it."""
        if self._outbox.disabled(message.url):
            self._outbox.give_up(message, _LEFT_ALONE)
            return
        outcome = self._sender.send(message)
        self._remember(message.receiver, outcome)
        self._settle(replace(message, attempts=message.attempts + 1), outcome)

    def _settle(self, tried: OutboxMessage, outcome: DeliveryOutcome) -> None:
        if outcome.verdict is DeliveryVerdict.DELIVERED:
            self._outbox.done(tried, outcome)
            return
        if outcome.verdict is DeliveryVerdict.GONE:
            self._outbox.disable(tried.url)
        pause_s = pause_after(tried.attempts, self._pauses, asked_s=outcome.retry_after_s)
        if outcome.verdict is DeliveryVerdict.RETRY and pause_s is not None:
            self._outbox.retry(tried, pause_s, outcome)
            log.info("callback %s: %s; again in %.0f s", tried.id, outcome.said, pause_s)
        else:
            self._outbox.give_up(tried, outcome)
            log.warning("callback %s given up: %s", tried.id, outcome.said)

    def _loop(self) -> None:
        with ThreadPoolExecutor(SENDERS, thread_name_prefix="callback") as pool:
            while not self._stopped.is_set():
                try:
                    claimed = self._hand_out(pool)
                except redis.RedisError as error:
                    log.warning("Redis does not answer the courier: %s", error)
                    self._stopped.wait(_REDIS_PAUSE_S)
                    continue
                if not claimed:
                    self._freed.wait(_POLL_S)
                    self._freed.clear()

    def _hand_out(self, pool: ThreadPoolExecutor) -> int:
        """Claim what the free senders can take. Returns how much that was."""
        now = time.monotonic()
        with self._lock:
            busy = dict(self._busy)
            self._slow = {who: at for who, at in self._slow.items() if now < at + _SLOW_S}
            slow = set(self._slow)
        free = SENDERS - sum(busy.values())
        if not free:
            return 0
        messages = self._outbox.claim(free, _LEASE_S, busy=busy, slow=slow)
        for message in messages:
            with self._lock:
                self._busy[message.receiver] += 1
            pool.submit(self._carry, message)
        return len(messages)

    def _carry(self, message: OutboxMessage) -> None:
        try:
            self.deliver(message)
        except redis.RedisError as error:
            log.warning("callback %s comes due again: %s", message.id, error)
        except Exception:
            log.exception("callback %s comes due again", message.id)
        finally:
            with self._lock:
                self._busy -= Counter([message.receiver])
            self._freed.set()

    def _remember(self, receiver: str, outcome: DeliveryOutcome) -> None:
        silent = outcome.verdict is DeliveryVerdict.RETRY and outcome.status is None
        with self._lock:
            if silent:
                self._slow[receiver] = time.monotonic()
            else:
                self._slow.pop(receiver, None)
