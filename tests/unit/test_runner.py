"""The device loop delivers pictures, and one bad prompt harms nobody else."""

import threading
from collections.abc import Sequence

import pytest

from shared.errors import DeviceError
from shared.jobs import JobRequest
from tests.support.engines import INFO, RecordingEngine
from worker.attempts import Attempt, Slot, plan_attempt, slots_of
from worker.engine.base import ImageSpec
from worker.runner import Runner


def _attempt(name: str, seed: int) -> Attempt:
    return plan_attempt(name, JobRequest.parse({"prompt": name, "seed": seed}), INFO)


def _run(engine: RecordingEngine, batches: list[list[Slot]]) -> list[int]:
    """Run `batches` to their end; the steps reported."""
    reported: list[int] = []
    queue = list(batches)
    empty = threading.Event()

    def next_batch() -> Sequence[Slot]:
        if queue:
            return queue.pop(0)
        empty.set()
        return []

    health, given_up = Health(engine, 0), []
    report = lambda _, step: reported.append(step)
    runner = Runner(engine, next_batch, report, 0.001, health, given_up.extend)
    runner.start()
    assert empty.wait(10)
    runner.stop()
    assert runner.join(10)
    return reported


def _slots(*attempts: Attempt) -> list[Slot]:
    return [slot for attempt in attempts for slot in slots_of(attempt)]


def test_each_attempt_gets_its_own_picture() -> None:
    first, second = _attempt("a", 11), _attempt("b", 22)
    reported = _run(RecordingEngine(8, lambda _: None), [_slots(first, second)])
    assert first.pictures()[0].max() == 11
    assert second.pictures()[0].max() == 22
    assert reported == [0, 1, 2, 3, 4]


def test_a_failing_batch_is_halved_until_the_culprit_is_alone() -> None:
    def fail_on_poison(specs: Sequence[ImageSpec]) -> None:
        if any(spec.prompt == "poison" for spec in specs):
            raise RuntimeError("boom")

    good = [_attempt(f"good {i}", i) for i in range(7)]
    poison = _attempt("poison", 0)
    engine = RecordingEngine(8, fail_on_poison)
    _run(engine, [_slots(*good[:3], poison, *good[3:])])
    assert [attempt.pictures()[0].max() for attempt in good] == list(range(7))
    with pytest.raises(DeviceError, match="RuntimeError: boom"):
        poison.pictures()
    assert [len(batch) for batch in engine.batches] == [8, 4, 4, 2, 2, 1, 1]


def test_the_loop_goes_on_after_a_batch_that_failed_whole() -> None:
    def fail_first(specs: Sequence[ImageSpec]) -> None:
        if specs[0].prompt == "bad":
            raise MemoryError

    bad, good = _attempt("bad", 1), _attempt("good", 2)
    _run(RecordingEngine(8, fail_first), [_slots(bad), _slots(good)])
    assert good.pictures()[0].max() == 2
    with pytest.raises(DeviceError):
        bad.pictures()
