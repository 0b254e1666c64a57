"""The next batch is claimed shortly before the running one ends, by its own pace."""

import pytest

from imagefleet.shared.jobs.model import JobRequest
from imagefleet.worker.devices.prefetch import PrefetchTimer
from imagefleet.worker.devices.work import Slot, slots_of
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
    monkeypatch.setattr("imagefleet.worker.devices.prefetch.time.monotonic", clock)
    return clock


def _batch(*steps: int) -> list[Slot]:
    return [
        slot
        for number, count in enumerate(steps)
        for slot in slots_of(
            plan_attempt(f"job-{number}", JobRequest(prompt="a", num_inference_steps=count), INFO)
        )
    ]


def _first_step_that_asks(
    foresight: PrefetchTimer, clock: Clock, batch: list[Slot], step_s: float
) -> int:
    longest = max(slot.spec.num_inference_steps for slot in batch)
    asked = []
    for step in range(longest + 1):
        asked.append(foresight.ends_soon(batch, step))
        clock.now += step_s
    return asked.index(True)


def test_slow_steps_ask_before_the_last_one(clock: Clock) -> None:
    foresight = PrefetchTimer()
    assert _first_step_that_asks(foresight, clock, _batch(20, 5), step_s=1.0) == 19


def test_quick_steps_ask_as_early_as_preparing_takes(clock: Clock) -> None:
    foresight = PrefetchTimer()
    foresight.prepared(1 / 8)
    asked_at = _first_step_that_asks(foresight, clock, _batch(50), step_s=1 / 64)
    assert asked_at == 50 - 16 - 1, "twice as early as it takes, and a step"


def test_a_short_batch_asks_at_once_when_its_pace_is_known(clock: Clock) -> None:
    foresight = PrefetchTimer()
    foresight.prepared(0.1)
    _first_step_that_asks(foresight, clock, _batch(4), step_s=0.01)
    assert _first_step_that_asks(foresight, clock, _batch(4), step_s=0.01) == 0


def test_one_slow_preparation_is_forgotten_again(clock: Clock) -> None:
    foresight = PrefetchTimer()
    foresight.prepared(5.0)
    for _ in range(60):
        foresight.prepared(0.01)
    assert _first_step_that_asks(foresight, clock, _batch(50), step_s=0.1) >= 48
