"""The bulk runs of a fleet, each in the lane that its id tells."""

from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.redis_client.lanes import Lanes


class LaneRuns:
    """This class finds the records of bulk runs. Threads may share it."""

    def __init__(self, lanes: Lanes, retention_s: int) -> None:
        self._lanes = lanes
        self._parts = [RunRecords(lane.client, lane.namespace, retention_s) for lane in lanes]

    def of(self, run: str) -> RunRecords:
        """Return the records of the lane of a run."""
        return self._parts[self._lanes.of(run).number]

    def ids(self) -> list[str]:
        """Return the ids of all runs, those of each lane with the latest first."""
        return [run for part in self._parts for run in part.ids()]

    def longest_idle_s(self) -> float:
        """Return for how long the run that waits longest has made no progress."""
        return max(part.stalled.longest_idle_s() for part in self._parts)
