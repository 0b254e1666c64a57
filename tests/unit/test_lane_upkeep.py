"""A worker with several lanes is ready, and stops, whatever one of them does."""

from types import SimpleNamespace
from typing import Any

import pytest

from imagefleet.shared.jobs.worker_status import Member
from imagefleet.worker.startup import status_reporter, worker_parts
from imagefleet.worker.startup.status_reporter import StatusReporter
from imagefleet.worker.startup.worker_parts import LaneUpkeep, stop_upkeep
from tests.support.engines import RecordingEngine

MEMBER = Member(serves_default=True)


def test_the_lease_keepers_of_lanes_that_hang_share_one_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, stopped = [100.0], []
    monkeypatch.setattr(worker_parts, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def upkeep(number: int) -> LaneUpkeep:
        def stop_hung(timeout_s: float) -> None:
            stopped.append((number, timeout_s))
            now[0] += timeout_s

        idle: Any = SimpleNamespace(stop=lambda: None)
        keeper: Any = SimpleNamespace(stop=stop_hung)
        return LaneUpkeep(lease_keeper=keeper, progress=idle, run_recovery=idle, image_sweeper=idle)

    stop_upkeep([upkeep(0), upkeep(1)], 3.0)
    assert stopped == [(0, 0.0), (1, 0.0), (0, 3.0), (1, 0.0)]


@pytest.mark.parametrize(
    ("others_answer", "reason"), [(True, None), (False, "Redis does not answer")]
)
def test_a_worker_is_ready_while_only_the_first_lane_is_down(
    monkeypatch: pytest.MonkeyPatch, others_answer: bool, reason: str | None
) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr(status_reporter, "time", clock)
    engine = RecordingEngine(1, lambda specs: None)
    health: Any = SimpleNamespace(quarantined=False)
    reporter = StatusReporter(
        "w", engine, MEMBER, health, int, int, lambda: None, 15.0, lambda: others_answer
    )
    assert reporter.not_ready_reason() is None
    now[0] += 16
    assert reporter.not_ready_reason() == reason
