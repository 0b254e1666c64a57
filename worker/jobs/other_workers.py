"""Decide whether other workers should have a job that failed here, and see what became of it.

Input: the failed attempts of a job. Output: whether another worker should have it. The module uses
what workers report of themselves in Redis.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import redis

from imagefleet.shared.jobs.failed_attempts import FailedAttempt, failed_alone
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.worker_names import host_of
from imagefleet.shared.jobs.worker_status import WorkerRegistry, WorkerState, WorkerStatus
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.worker.devices.slots import Work
from imagefleet.worker.jobs.attempt import Attempt

log = logging.getLogger(__name__)

_STATUS_AGE_S: Final = 2.0
"""What the workers report is read again after so many seconds."""
_RETRY_S: Final = 30.0
"""It is read again so long after Redis did not answer: it may hang, and the jobs of all lanes wait
for the answer of the first one."""
_MAX_WAIT_S: Final = 300.0
"""For so long a worker leaves a job to others. They may look able and still not claim it."""
_MAX_JOBS: Final = 10_000


class OtherWorkers:
    """The workers of the fleet, as one of them sees the others. One thread calls it."""

    def __init__(self, registry: WorkerRegistry, worker: str, model: str) -> None:
        self._registry = registry
        self._worker = worker
        self._model = model
        self._statuses: list[WorkerStatus] = []
        self._read_at = float("-inf")
        self._left_since: dict[tuple[str, float], float] = {}
        """It says since when each job has been left to others, by the time of its latest failure:
        the wait begins anew after another one."""

    def should_have(self, attempt: Attempt, failures: Sequence[FailedAttempt]) -> bool:
        """Return whether another worker should have a job that failed on this host: one on a host
        on which it has not failed, or, if it failed on this very worker, any other one."""
        names = {each.worker for each in failed_alone(failures)}
        hosts = {host_of(name) for name in names}
        able = [each.worker for each in self._ready() if _serves(each, attempt)]
        left = any(host_of(name) not in hosts for name in able)
        left = left or (self._worker in names and any(name not in names for name in able))
        wait = attempt.job_id, max((each.at for each in failures), default=0.0)
        if left and self._waits_still(wait):
            return True
        self._left_since.pop(wait, None)  # it starts here
        return False

    def _waits_still(self, wait: tuple[str, float]) -> bool:
        now = time.monotonic()
        since = self._left_since.setdefault(wait, now)
        if len(self._left_since) > _MAX_JOBS:
            del self._left_since[next(iter(self._left_since))]  # the oldest
        return now - since < _MAX_WAIT_S

    def _ready(self) -> list[WorkerStatus]:
        now = time.monotonic()
        if now - self._read_at >= _STATUS_AGE_S:
            self._read(now)
        return [
            each
            for each in self._statuses
            if each.state is WorkerState.READY
            and each.model == self._model
            and each.worker != self._worker
        ]

    def _read(self, now: float) -> None:
        """Read what the workers report. While Redis does not answer, what they said last counts."""
        self._read_at = now
        try:
            self._statuses = self._registry.statuses()
        except redis.RedisError as error:
            self._read_at = time.monotonic() + _RETRY_S
            log.warning("what other workers report is not known now: %s", error)


def _serves(status: WorkerStatus, attempt: Attempt) -> bool:
    """Return whether a worker of the model claims a job like this one, as far as it says so."""
    if str(attempt.shape) not in status.shapes:
        return False
    member = status.member
    return attempt.request.model is not None or member is None or member.serves_default


def count_succeeded(lanes: Lanes, records: Sequence[JobRecords]) -> Callable[[Sequence[Work]], int]:
    """Return a function that counts the jobs among works that have succeeded, as the records of
    each lane say. If Redis does not answer, none has."""

    def read(lane: Lane, names: list[str]) -> list[State | None]:
        return records[lane.number].states(names)

    def count(works: Sequence[Work]) -> int:
        try:
            names = dict.fromkeys(work.name for work in works if work.name)
            states = lanes.answer_each(list(names), str, read)
        except Exception as error:  # the devices must not wait for Redis
            log.warning("what became of jobs that failed here is not known now: %s", error)
            return 0
        return states.count(State.SUCCEEDED)

    return count
