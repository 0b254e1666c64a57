"""Derive the events of a run from successive statuses, for who waits for it in this process.

Input: statuses. Output: events with the names and the data that callbacks have; `run_events.lua`
writes those. Their `sequence` counts the events of this wait: a later one begins with 1 again, and
with `run.started` as things are then. Nothing is sent.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from imagefleet.producer.bulk.receivers import describe_run
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.jobs.model import State

STALLED_S: Final = 300.0
"""Seconds without an image after which a run counts as stalled, as workers report it by default."""


class RunNotices:
    """The events of one run, as one wait sees them."""

    def __init__(self, run: BulkRun, stalled_s: float = STALLED_S) -> None:
        """Begin without an event. `stalled_s`: seconds without an image until a run is stalled."""
        self._about: Mapping[str, object] = {"id": run.id, **describe_run(run)}
        self._stalled_s = stalled_s
        self._sequence = 0
        self._tenths: int | None = None
        """The last that were in an event; None before the run has started."""
        self._counts: tuple[int, int] | None = None
        self._idle_since = math.inf
        self._is_stalled = False

    def of(self, status: RunStatus, at: float) -> Iterator[dict[str, Any]]:
        """Yield what has happened since the last status. This one was read at `at`, in seconds."""
        tenths = _tenths(status)
        if status.done:
            yield self._event("ended", status, tenths)
        elif self._tenths is None and status.shards_by_state[State.RUNNING]:
            self._tenths = tenths
            yield self._event("started", status, tenths)
        elif self._tenths is not None and tenths > self._tenths:
            self._tenths = tenths
            yield self._event("progress", status, tenths)
        idle_s = self._idle_s(status, at)
        if not status.done and idle_s >= self._stalled_s and not self._is_stalled:
            self._is_stalled = True
            progress = max(tenths, self._tenths or 0)
            yield self._event("stalled", status, progress, idle_s=int(idle_s))

    def _idle_s(self, status: RunStatus, at: float) -> float:
        """Return for how long no image was made and no shard has ended."""
        shards = status.shards_by_state
        ended = shards[State.SUCCEEDED] + shards[State.FAILED]
        counts = (status.images + status.failed_images, ended)
        if counts != self._counts:
            self._counts, self._idle_since, self._is_stalled = counts, at, False
        return at - self._idle_since

    def _event(self, name: str, status: RunStatus, tenths: int, **more: int) -> dict[str, Any]:
        self._sequence += 1
        data = {
            **self._about,
            "state": status.state.value,
            "sequence": self._sequence,
            "progress": 10 * tenths,
            "samples": status.samples,
            "images": status.images,
            "failed_images": status.failed_images,
            "shards": status.shards,
            "shards_by_state": {str(state): n for state, n in status.shards_by_state.items()},
            **more,
        }
        return {"type": f"run.{name}", "timestamp": datetime.now(UTC).isoformat(), "data": data}


def _tenths(status: RunStatus) -> int:
    """Return how many tenths of the images are made or have failed. Only an ended run has ten."""
    done = status.images + status.failed_images
    tenths = min(10, 10 * done // status.samples) if status.samples else 10
    return max(0, tenths if status.done else min(9, tenths))
