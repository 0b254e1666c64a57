"""The job records of a fleet, each in the lane that its id tells.

A fleet on one server has one lane. This module reads no images and makes no job handles.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Final, TypeVar

from imagefleet.shared.errors import UnreadableRecord
from imagefleet.shared.jobs.cancel import cancel
from imagefleet.shared.jobs.listing import JobListing
from imagefleet.shared.jobs.model import State, check_job_id, new_job_id
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.record_marks import Mark, read_marks
from imagefleet.shared.jobs.record_reader import read_records
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.jobs.tenants import NO_TENANT
from imagefleet.shared.jobs.waiting_elsewhere import WaitingElsewhere
from imagefleet.shared.redis_client.each_lane import ask_at_once, start_asking
from imagefleet.shared.redis_client.lanes import Lane, Lanes, lane_number

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)

_ANSWER_S: Final = 3.0
"""Seconds that lanes have for an answer. The next poll of a wait asks again."""
_LEFT_OUT: Final = "its jobs are left out"
_AWAY_S: Final = 5.0
"""Seconds for which new ids are drawn from other lanes after a lane could not take a job."""


class LaneRecords:
    """This class submits, reads, cancels and deletes jobs of any lane. Threads may share it."""

    def __init__(self, lanes: Lanes, retention_s: int) -> None:
        self.lanes: Final = lanes
        self._records = [JobRecords(lane.client, lane.namespace, retention_s) for lane in lanes]
        self._listings = [JobListing(lane.client, lane.namespace) for lane in lanes]
        self._waiting = WaitingElsewhere(lanes) if len(lanes) > 1 else None
        self._silent: set[int] = set()
        """Lanes that did not answer when `known_states` asked them last."""
        self._away_until: dict[int, float] = {}
        """Lanes that could not take the last jobs, with the time at which they are tried again."""

    def of(self, job_id: str) -> JobRecords:
        """Return the records of the lane that holds a job."""
        return self._records[self.lanes.of(job_id).number]

    def key_in(self, lane: Lane, job_id: str) -> list[str]:
        """Return the key of a job's record if it is in `lane`, and else nothing."""
        return [self.of(job_id).key(job_id)] if self.lanes.of(job_id) is lane else []

    def is_elsewhere(self, lane: Lane, job_id: str) -> bool:
        """Return whether another lane than `lane` has a record of a job."""
        own = self.lanes.of(job_id)
        return own is not lane and bool(own.client.exists(self.of(job_id).key(job_id)))

    def read_fields(
        self, job_ids: Sequence[str], fields: Sequence[str]
    ) -> dict[str, list[str | None]]:
        """Return these fields of the records of jobs, by id. None stands for one that is not there,
        or cannot be read. Jobs of lanes that do not answer are left out. One round trip a lane."""

        def ask(lane: Lane, own: list[str]) -> list[tuple[str, list[str | None]]]:
            keys = [self._records[lane.number].key(job_id) for job_id in own]
            answers = read_records(lane.client, keys, lambda pipe, key: pipe.hmget(key, fields))
            missing: list[str | None] = [None] * len(fields)
            values = [missing if isinstance(each, Exception) else each for each in answers]
            return list(zip(own, values, strict=True))

        return dict(self._ask_lanes(job_ids, ask))

    def _ask_lanes(
        self, job_ids: Iterable[str], ask: Callable[[Lane, list[str]], list[Answer]]
    ) -> list[Answer]:
        """Return what lanes answer to the question for their jobs; see `ask_at_once`."""
        own = self._by_lane(job_ids)
        asks = {number: partial(ask, self.lanes[number], ids) for number, ids in own.items()}
        answers = ask_at_once(asks, len(self.lanes), _ANSWER_S, _LEFT_OUT)
        return list(chain.from_iterable(answers.values()))

    def _by_lane(self, job_ids: Iterable[str]) -> dict[int, list[str]]:
        """Return the ids by the number of their lane."""
        own: dict[int, list[str]] = {}
        for job_id in job_ids:
            own.setdefault(self.lanes.of(job_id).number, []).append(job_id)
        return own

    def id_source(self, stored: Callable[[str], str] = str) -> Callable[[], str]:
        """Return a function that draws new ids of one lane, which is drawn by chance now: jobs with
        such ids are accepted together or not at all. Lanes that could not take jobs in the last
        seconds are left out, unless no lane could.

        Args:
            stored: returns the id under which the job of a drawn id is stored.
        """
        if (lanes := len(self.lanes)) == 1:
            return new_job_id
        now = time.monotonic()
        present = [n for n in range(lanes) if self._away_until.get(n, now) <= now]
        wanted = random.choice(present or range(lanes))

        def draw() -> str:
            while lane_number(stored(job_id := new_job_id()), lanes) != wanted:
                pass
            return job_id

        return draw

    @contextmanager
    def _noting_whether_away(self, number: int) -> Iterator[None]:
        """Note whether a lane can take the jobs that it is given meanwhile."""
        import redis

        try:
            yield
        except redis.RedisError:
            self._away_until[number] = time.monotonic() + _AWAY_S
            raise
        self._away_until.pop(number, None)

    def submit(
        self,
        jobs: Sequence[tuple[str, JobRequest]],
        *,
        by_compile_key: bool = True,
        offers: Mapping[str, Offer],
        trace_parent: str | None = None,
    ) -> list[bool]:
        """Accept jobs, those of one lane all or none. Return for each whether its id is new.

        Raises:
            InvalidRequest, QueueFull, redis.RedisError: see `JobSubmitter.submit`. The jobs of
                lanes before it stay accepted; a warning in the log names them.
        """
        accepted: list[str] = []

        def accept(lane: Lane, own: list[tuple[str, JobRequest]]) -> list[bool]:
            waiting = self._waiting
            with self._noting_whether_away(lane.number):
                is_new = self._records[lane.number].submit(
                    own,
                    by_compile_key=by_compile_key,
                    offers=offers,
                    trace_parent=trace_parent,
                    elsewhere=None if waiting is None else partial(waiting.count, lane.number),
                )
            accepted.extend(job_id for job_id, _ in own)
            if waiting is not None:
                new = (request for (_, request), each in zip(own, is_new, strict=True) if each)
                waiting.add(lane.number, (request.tenant or NO_TENANT for request in new))
            return is_new

        try:
            return self.lanes.answer_each(jobs, itemgetter(0), accept)
        except Exception:
            if accepted:
                log.warning("these jobs of a failed call are accepted: %s", ", ".join(accepted))
            raise

    def read_each(self, job_ids: Sequence[str]) -> list[JobStatus | UnreadableRecord | None]:
        """Return what the records say; see `JobRecords.read_each`. One round trip a lane."""
        return self.lanes.answer_each(
            job_ids, str, lambda lane, own: self._records[lane.number].read_each(own)
        )

    def read_marks(self, job_ids: Sequence[str]) -> list[Mark]:
        """Return for each job what changes with its record; see `record_marks`."""
        return self.lanes.answer_each(
            job_ids, str, lambda lane, own: read_marks(lane.client, lane.namespace, own)
        )

    def states(self, job_ids: Sequence[str]) -> list[State | None]:
        """Return only the states; see `JobRecords.states`. One round trip a lane."""
        return self.lanes.answer_each(
            job_ids, str, lambda lane, own: self._records[lane.number].states(own)
        )

    def known_states(self, job_ids: Sequence[str]) -> dict[str, State | None]:
        """Return the states by id, without those of lanes that do not answer within seconds.

        Raises redis.RedisError: no lane answers.
        """
        import redis

        if len(self.lanes) == 1:
            return dict(zip(job_ids, self.states(job_ids), strict=True))
        own = self._by_lane(job_ids)
        asked = {
            number: start_asking(partial(self._records[number].states, ids), "states")
            for number, ids in own.items()
        }
        done, _ = wait(asked.values(), _ANSWER_S)
        answered = [n for n, each in asked.items() if each in done and not each.exception()]
        self._note_answers(answered, asked.keys() - answered)
        if not answered:
            for each in done:
                each.result()  # raises its error
            raise redis.TimeoutError(f"no lane answered within {_ANSWER_S:g} s")
        return {
            job_id: state
            for number in answered
            for job_id, state in zip(own[number], asked[number].result(), strict=True)
        }

    def _note_answers(self, answered: Iterable[int], silent: Set[int]) -> None:
        """Log which lanes have stopped to answer."""
        self._silent.difference_update(answered)
        if new := sorted(silent - self._silent):
            lanes = ", ".join(map(str, new))
            log.warning("lanes that do not answer, and whose jobs are waited for: %s", lanes)
        self._silent |= silent

    def resend(self, job_id: str, *, by_compile_key: bool) -> bool:
        """Queue the message of a queued job again if it has none; see `JobRecords.resend`."""
        [resent] = self.of(job_id).resend([job_id], by_compile_key=by_compile_key)
        return resent

    def cancel(self, job_id: str) -> State:
        """Cancel a job, and return its state now; see `shared.jobs.cancel`."""
        return cancel(self.of(check_job_id(job_id)), job_id)

    def pages(self, *, state: State | None, since: float | None) -> Iterator[list[str]]:
        """Yield the ids of jobs page by page, one lane after the other; see `JobListing.page`. A
        lane that does not answer is left out, and the log names it.

        Raises redis.RedisError: no lane answers.
        """
        import redis

        has_answered = False
        for number, listing in enumerate(self._listings):
            cursor: int | None = 0
            while cursor is not None:
                ask = partial(listing.page, cursor, state=state, since=since)
                answers = ask_at_once({number: ask}, len(self.lanes), _ANSWER_S, _LEFT_OUT)
                if number not in answers:
                    break
                has_answered = True
                following, ids = answers[number]
                cursor = following or None
                yield ids
        if not has_answered:
            raise redis.ConnectionError("no lane answers")
