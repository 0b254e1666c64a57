"""Watch very many jobs of one lane: one subscription, one thread, and no polling of each job.

Input: job ids. Output: the status of each job at once, and again after each change. A change that
nobody hears, as of a worker whose user may not publish, is found every few seconds.
"""

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.connection.outages import RETRY_S
from imagefleet.producer.gateway.jobs.change_subscription import ChangeSubscription
from imagefleet.producer.gateway.jobs.job_changes import JobChanges
from imagefleet.shared.errors import BrokerUnavailable, UnreadableRecord
from imagefleet.shared.jobs.record_marks import Mark, mark_of
from imagefleet.shared.jobs.status import JobStatus, unknown_job_error
from imagefleet.shared.redis_client.lanes import Lane

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class _WatchedJob:
    """It holds all watches of one job."""

    watches: set[JobChanges] = field(default_factory=set)
    mark: Mark = ()


class LaneWatcher:
    """It watches the jobs of one lane. Its thread starts with the first watch.

    Waiting costs no thread and no connection. Event loops in several threads may share it.
    """

    def __init__(
        self,
        connection: Connection,
        lane: Lane,
        *,
        gather_s: float = 0.02,
        poll_s: float = 2.0,
        outage_s: float = 60.0,
    ) -> None:
        """
        Args:
            gather_s: seconds in which changes are gathered. Their records are read together.
            poll_s: seconds between two looks at all records, for changes that were not heard.
            outage_s: seconds that a watch lasts while Redis is away.
        """
        self._connection = connection
        self._gather_s, self._poll_s, self._outage_s = gather_s, poll_s, outage_s
        self._subscription = ChangeSubscription(lane)
        self._jobs: dict[str, _WatchedJob] = {}
        self._due: set[str] = set()  # jobs whose records must be read
        self._changed = threading.Condition()  # guards the jobs, what is due, and the thread
        self._thread: threading.Thread | None = None
        self._closed = False
        self._next_poll = 0.0
        self._away_since: float | None = None

    def watched(self) -> int:
        """Return how many jobs are watched now."""
        return len(self._jobs)

    def join(self, changes: JobChanges) -> None:
        """Put the status of a job into `changes`, and each later one."""
        with self._changed:
            if self._closed:
                changes.close()
                return
            self._jobs.setdefault(changes.job_id, _WatchedJob()).watches.add(changes)
            self._due.add(changes.job_id)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="imagefleet-watch", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def leave(self, changes: JobChanges) -> None:
        """Put nothing more into `changes`."""
        with self._changed:
            job = self._jobs.get(changes.job_id)
            if job is not None:
                job.watches.discard(changes)
                if not job.watches:
                    self._forget([changes.job_id])

    def close(self, timeout_s: float) -> None:
        """End all watches, and the subscription, for which it waits up to `timeout_s`."""
        with self._changed:
            self._closed = True
            watches = self._forget(list(self._jobs))
            self._changed.notify_all()
        for changes in watches:
            changes.close()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _forget(self, job_ids: Iterable[str]) -> list[JobChanges]:
        """Watch these jobs no more. Return who watched them. The lock must be held."""
        forgotten = [self._jobs.pop(job_id) for job_id in job_ids if job_id in self._jobs]
        self._due &= self._jobs.keys()
        return [changes for job in forgotten for changes in job.watches]

    def _run(self) -> None:
        while not self._closed:
            try:
                self._look()
                self._rest()
            except Exception as error:  # of any kind: the watches would wait for ever without us
                self._wait_out(error)
            else:
                self._away_since = None
        self._subscription.close()

    def _rest(self) -> None:
        """Unsubscribe and wait while there is no job to watch."""
        with self._changed:
            if self._jobs:
                return
        self._subscription.hear(frozenset(), 0)
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)

    def _look(self) -> None:
        """Gather changes for a moment, then read the records that have changed.

        Raises:
            BrokerUnavailable: what could not be read stays due.
        """
        with self._changed:
            watched = frozenset(self._jobs)
        heard = self._subscription.hear(watched, self._gather_s)
        if time.monotonic() >= self._next_poll:
            heard |= self._differing()
            self._next_poll = time.monotonic() + self._poll_s
        with self._changed:
            due, self._due = list(self._due | (heard & self._jobs.keys())), set()
        try:
            answers = self._connection.read_statuses(due) if due else []
        except Exception:
            with self._changed:
                self._due.update(self._jobs.keys() & set(due))
            raise
        for job_id, answer in zip(due, answers, strict=True):
            self._deliver(job_id, answer)

    def _differing(self) -> set[str]:
        """Return the jobs whose records are not as they were read last."""
        with self._changed:
            marks = {job_id: job.mark for job_id, job in self._jobs.items() if job.mark}
        found = self._connection.read_marks(list(marks)) if marks else []
        return {job_id for job_id, mark in zip(marks, found, strict=True) if mark != marks[job_id]}

    def _deliver(self, job_id: str, answer: JobStatus | UnreadableRecord | None) -> None:
        """Give all who watch a job what its record said."""
        with self._changed:
            job = self._jobs.get(job_id)
            if job is None or job_id in self._due:  # who has come since gets what is read next
                return
            watches = list(job.watches)
            if isinstance(answer, JobStatus) and not answer.done:
                job.mark = mark_of(answer)
            else:
                self._forget([job_id])
        for changes in watches:
            if isinstance(answer, JobStatus):
                changes.put(answer)
            else:
                changes.fail(answer or unknown_job_error(job_id))

    def _wait_out(self, error: Exception) -> None:
        """Pause until the next try. End the watches that have waited for Redis long enough."""
        now, known = time.monotonic(), isinstance(error, BrokerUnavailable)
        if self._away_since is None:
            self._away_since = now
            log.warning("%s. Waiting until it is back", error, exc_info=not known)
        self._next_poll = 0.0  # what changes meanwhile may not be heard
        latest = now - self._outage_s
        with self._changed:
            watches = [changes for job in self._jobs.values() for changes in job.watches]
        if self._away_since <= latest:
            for changes in watches:
                if changes.since <= latest:
                    self.leave(changes)
                    changes.fail(BrokerUnavailable(str(error)))
        with self._changed:
            self._changed.wait_for(lambda: self._closed, RETRY_S)
