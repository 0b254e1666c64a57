"""The next batch is claimed shortly before the running one ends, as its step time predicts."""

import pytest

from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.devices.prefetch_timer import PrefetchTimer
from imagefleet.worker.devices.slots import Slot, slots_of
from imagefleet.worker.jobs.attempt import plan_attempt
from tests.support.engines import INFO


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("imagefleet.worker.devices.prefetch_timer.time.monotonic", clock)
    return clock


def _batch(*steps: int) -> list[Slot]:
    return [
        slot
        for number, count in enumerate(steps)
        for slot in slots_of(
            plan_attempt(f"job-{number}", JobRequest(prompt="a", num_inference_steps=count), INFO)
        )
    ]


def _first_prefetch_step(
    timer: PrefetchTimer, clock: Clock, batch: list[Slot], step_s: float
) -> int:
    longest = max(slot.spec.num_inference_steps for slot in batch)
    decisions = []
    for step in range(longest + 1):
        decisions.append(timer.should_prefetch(batch, step))
        clock.now += step_s
    return decisions.index(True)


def test_with_slow_steps_the_prefetch_starts_before_the_last_one(clock: Clock) -> None:
    timer = PrefetchTimer()
    assert _first_prefetch_step(timer, clock, _batch(20, 5), step_s=1.0) == 19


def test_with_quick_steps_the_prefetch_starts_twice_the_preparation_time_before_the_end(
    clock: Clock,
) -> None:
    timer = PrefetchTimer()
    timer.record_preparation(1 / 8)
    prefetched_at = _first_prefetch_step(timer, clock, _batch(50), step_s=1 / 64)
    assert prefetched_at == 50 - 16 - 1, "twice the preparation time, and one step"


def test_a_short_batch_prefetches_at_its_start_once_the_step_time_is_known(clock: Clock) -> None:
    timer = PrefetchTimer()
    timer.record_preparation(0.1)
    _first_prefetch_step(timer, clock, _batch(4), step_s=0.01)
    assert _first_prefetch_step(timer, clock, _batch(4), step_s=0.01) == 0


def test_one_slow_preparation_is_forgotten(clock: Clock) -> None:
    timer = PrefetchTimer()
    timer.record_preparation(5.0)
    for _ in range(60):
        timer.record_preparation(0.01)
    assert _first_prefetch_step(timer, clock, _batch(50), step_s=0.1) >= 48
