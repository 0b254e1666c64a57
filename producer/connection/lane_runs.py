"""The bulk runs of a fleet, each in the lane that its id tells."""

from typing import Final

from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.redis_client.each_lane import ask_at_once
from imagefleet.shared.redis_client.lanes import Lanes

_LIST_S: Final = 10.0
"""Seconds that all lanes together have to list their runs."""


class LaneRuns:
    """This class finds the records of bulk runs. Threads may share it."""

    def __init__(self, lanes: Lanes, retention_s: int) -> None:
        self._lanes = lanes
        self._parts = [RunRecords(lane.client, lane.namespace, retention_s) for lane in lanes]

    def of(self, run: str) -> RunRecords:
        """Return the records of the lane of a run."""
        return self._parts[self._lanes.of(run).number]

    def ids(self) -> list[str]:
        """Return the ids of all runs, those of each lane with the latest first. One of several
        lanes that does not answer is left out, with a warning."""
        asks = {number: part.ids for number, part in enumerate(self._parts)}
        answers = ask_at_once(asks, len(asks), _LIST_S, "its datasets are not listed")
        return [run for runs in answers.values() for run in runs]

    def longest_idle_s(self, within_s: float = 10.0) -> float:
        """Return for how long the run that waits longest has made no progress.

        Args:
            within_s: one of several lanes that has not answered by then is left out.
        """
        asks = {number: part.stalled.longest_idle_s for number, part in enumerate(self._parts)}
        answers = ask_at_once(asks, len(asks), within_s, "its datasets do not count")
        return max(answers.values(), default=0.0)
