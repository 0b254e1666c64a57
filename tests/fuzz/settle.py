"""Wait until a round has settled: nothing waits, nothing is claimed, every callback was tried."""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from imagefleet.shared.jobs.model import TERMINAL
from tests.fuzz.fleet import MAX_DELIVERIES, NAMESPACE, FuzzedFleet
from tests.fuzz.ledger import Ledger, Problem

_POLL_S: Final = 0.1
_IDLE_POLLS: Final = 3
"""A message that moves between two lists while they are read may not be seen once."""
_MAX_ROUNDS: Final = 60
"""Times that one delayed message is made due. Each delivery and each retry delays it once."""


class Settling:
    """Settling waits for the cases of one round."""

    def __init__(self, fleet: FuzzedFleet, ledger: Ledger, stall_s: float) -> None:
        """
        Args:
            stall_s: seconds without progress after which the round counts as stuck.
        """
        self._fleet, self._ledger, self._stall_s = fleet, ledger, stall_s
        self._made_due: Counter[bytes] = Counter()
        self.delayed_until_eta: set[bytes] = set()
        """Messages whose header `eta` delays them. They were removed."""

    def wait(self, jobs: Sequence[str]) -> list[Problem]:
        """Wait for `jobs` and everything else that is in flight. Return what went wrong."""
        idle, fewest, progress_at = 0, float("inf"), time.monotonic()
        while True:
            if not self._fleet.alive:
                return [self._death()]
            if problem := self._make_due():
                return [problem]
            jobs = self._open(jobs)
            counts = self._counts(jobs)
            left = sum(counts.values())
            idle = 0 if left else idle + 1
            if idle == _IDLE_POLLS:
                return []
            if left < fewest:
                fewest, progress_at = left, time.monotonic()
            if time.monotonic() > progress_at + self._stall_s:
                return [self._stuck(counts, jobs)]
            time.sleep(_POLL_S)

    def _open(self, jobs: Sequence[str]) -> list[str]:
        pipe = self._fleet.redis.pipeline(transaction=False)
        for job_id in jobs:
            pipe.hget(f"{NAMESPACE}:job:{job_id}", "state")
        terminal = {state.value.encode() for state in TERMINAL}
        return [
            job for job, state in zip(jobs, pipe.execute(), strict=True) if state not in terminal
        ]

    def _counts(self, jobs: Sequence[str]) -> dict[str, int]:
        deliveries = self._fleet.deliveries()
        self._ledger.raise_to("deliveries of a message", max(deliveries, default=1))
        return {
            "waiting messages": sum(len(each) for each in self._fleet.waiting().values()),
            "claims": len(self._fleet.claimed()),
            "delayed messages": len(self._fleet.delayed()),
            "delivery counts": len(deliveries),
            "jobs that have not ended": len(jobs),
            "callbacks that were not tried": self._untried_callbacks(),
        }

    def _untried_callbacks(self) -> int:
        ids = cast(list[bytes], self._fleet.redis.zrange(f"{NAMESPACE}:outbox", 0, -1))
        if not ids:
            return 0
        texts: Any = self._fleet.redis.hmget(f"{NAMESPACE}:outbox:messages", ids)
        return sum(not json.loads(text).get("attempts") for text in texts if text)

    def _make_due(self) -> Problem | None:
        """Make delayed messages due, so that a round need not wait for backoffs."""
        key = f"{NAMESPACE}:later"
        for entry, due in self._fleet.delayed():
            message = entry.partition(b"\0")[2]
            if due > time.time() and headers_of(message).get("eta"):
                self._fleet.redis.zrem(key, entry)
                self.delayed_until_eta.add(message)
                continue
            self._made_due[entry] += due > time.time()
            if self._made_due[entry] > _MAX_ROUNDS:
                return Problem(
                    sentence=f"a message was delayed {_MAX_ROUNDS} times: {message[:200]!r}",
                    suspects=_case_ids([message]),
                )
            self._fleet.redis.zadd(key, {entry: 0.0}, xx=True)
        if (highest := max(self._fleet.deliveries(), default=0)) > MAX_DELIVERIES + 1:
            return Problem(sentence=f"a message was delivered {highest} times")
        return None

    def _death(self) -> Problem:
        code = self._fleet.worker.process.poll()
        return Problem(
            sentence=f"the worker ended with exit code {code}", suspects=self._in_flight()
        )

    def _stuck(self, counts: dict[str, int], jobs: Sequence[str]) -> Problem:
        left = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        return Problem(
            sentence=f"no progress for {self._stall_s:g} s; left: {left}",
            suspects=[*self._in_flight(), *jobs],
        )

    def _in_flight(self) -> list[str]:
        waiting = [each for messages in self._fleet.waiting().values() for each in messages]
        claimed = [entry.partition(b"\0")[2] for entry in self._fleet.claimed()]
        return _case_ids([*claimed, *waiting])


def headers_of(message: bytes) -> Mapping[str, Any]:
    """Return the headers of a message; none if it cannot be read."""
    with suppress(Exception):
        headers = json.loads(message.decode(errors="replace"))["headers"]
        return headers if isinstance(headers, dict) else {}
    return {}


def job_id_of(message: bytes) -> str | None:
    """Return the header `id` of a message; None if it has none."""
    job_id = headers_of(message).get("id")
    return job_id if isinstance(job_id, str) else None


def _case_ids(messages: Sequence[bytes]) -> list[str]:
    return [job_id for message in messages if (job_id := job_id_of(message))]
