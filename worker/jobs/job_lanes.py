"""The jobs of one worker by lane: what starts, holds and ends those of each lane of its fleet.

All keys that the scripts of a claimed job touch are in the lane of its claim, which the tag tells.
So what handles one job knows one lane only. A fleet on one server has one lane.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Self

from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.jobs.execute import JobExecutor
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.progress import ProgressReporter
from imagefleet.worker.jobs.start_attempt import JobStarter
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lane_claims import LaneClaims


@dataclass(frozen=True, kw_only=True)
class JobLane:
    """What handles the jobs of one lane."""

    claims: Claims
    starter: JobStarter
    in_flight: InFlight
    executor: JobExecutor
    progress: ProgressReporter


class JobLanes:
    """The jobs of all lanes. Threads may share it."""

    def __init__(self, claims: LaneClaims, lanes: Sequence[JobLane]) -> None:
        self.claims: Final = claims
        self._lanes = tuple(lanes)

    @classmethod
    def single(cls, lane: JobLane) -> Self:
        """Return the lane of a fleet on one server."""
        return cls(LaneClaims.single(lane.claims), [lane])

    def __iter__(self) -> Iterator[JobLane]:
        return iter(self._lanes)

    def __getitem__(self, number: int) -> JobLane:
        return self._lanes[number]

    def of(self, tag: str) -> JobLane:
        """Return the lane in which a message was claimed."""
        return self._lanes[self.claims.number_of(tag)]

    def count_in_flight(self) -> int:
        """Return how many jobs are between claim and acknowledgement."""
        return sum(len(lane.in_flight) for lane in self._lanes)

    def attempts(self) -> list[Attempt]:
        """Return the attempts in flight that have started."""
        return [each for lane in self._lanes for each in lane.in_flight.attempts()]

    def requeue(
        self,
        attempts: Sequence[Attempt],
        *,
        counted: bool = False,
        failure: tuple[str, str] | None = None,
    ) -> list[Attempt]:
        """Requeue attempts, and return those that were; see `JobExecutor.requeue`.

        All lanes are asked at the same time. The attempts of one that does not answer are requeued
        when it does, and are not returned.
        """
        requeued = self.claims.in_each_lane(
            {
                number: partial(lane.executor.requeue, own, counted=counted, failure=failure)
                for number, lane in enumerate(self._lanes)
                if (own := [each for each in attempts if self.claims.number_of(each.tag) == number])
            },
            "its jobs are requeued later",
        )
        return list(chain.from_iterable(requeued))

    def report_progress(self, steps: Mapping[Slot, int]) -> None:
        """Note how many steps the slots on the devices have done."""
        if len(self._lanes) == 1:
            self._lanes[0].progress.report(steps)
            return
        for lane in self._lanes:
            own = {slot: done for slot, done in steps.items() if self._is_in(lane, slot)}
            if own:
                lane.progress.report(own)

    def _is_in(self, lane: JobLane, slot: Slot) -> bool:
        return isinstance(slot.work, Attempt) and self.of(slot.work.tag) is lane
