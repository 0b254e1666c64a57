"""The device loop delivers pictures, and one bad prompt harms nobody else."""

import threading
from collections.abc import Sequence

import pytest

from imagefleet.shared.errors import DeviceError, InvalidRequest
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.devices.device_loop import DeviceLoop, GiveUp
from imagefleet.worker.devices.health import HealthCheck
from imagefleet.worker.devices.work import Slot, slots_of
from imagefleet.worker.engine.interface import ImageSpec
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt
from tests.support.engines import INFO, RecordingEngine


def _attempt(name: str, seed: int) -> Attempt:
    return plan_attempt(name, JobRequest.parse({"prompt": name, "seed": seed}), INFO)


class AlwaysWell(HealthCheck):
    """Or so it says."""

    def devices_ok(self) -> bool:
        return True

    def recover(self, stopping: threading.Event) -> None:
        return


class SickAtFirst(HealthCheck):
    """Recovers when asked to."""

    recovered = False

    def devices_ok(self) -> bool:
        return self.recovered

    def recover(self, stopping: threading.Event) -> None:
        self.recovered = True


class WellOnce(SickAtFirst):
    """Falls sick while a failed batch is being halved."""

    asked = 0

    def devices_ok(self) -> bool:
        self.asked += 1
        return self.asked == 1


class GivenUp:
    """What a runner gave up: the batches on sick devices, and what waited at that time."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Slot]] = []
        self.waiting: list[Sequence[Slot]] = []

    def __call__(self, batch: Sequence[Slot], waiting: Sequence[Slot]) -> None:
        self.batches.append(batch)
        self.waiting.append(waiting)


def _run(
    engine: RecordingEngine,
    batches: list[list[Slot]],
    health: HealthCheck | None = None,
    give_up: GiveUp = lambda hurt, waiting: None,
) -> list[int]:
    """Run `batches` to their end; the steps reported."""
    reported: list[int] = []
    queue = list(batches)
    empty = threading.Event()

    def next_batch() -> Sequence[Slot]:
        if queue:
            return queue.pop(0)
        empty.set()
        return []

    runner = DeviceLoop(
        engine,
        next_batch,
        lambda _, step: reported.append(step),
        0.001,
        health or AlwaysWell(engine, MemoryStore(), 0),
        give_up,
    )
    runner.start()
    assert empty.wait(60)
    runner.stop()
    assert runner.join(60)
    return reported


def _slots(*attempts: Attempt) -> list[Slot]:
    return [slot for attempt in attempts for slot in slots_of(attempt)]


def test_each_attempt_gets_its_own_picture() -> None:
    first, second = _attempt("a", 11), _attempt("b", 22)
    reported = _run(RecordingEngine(8, lambda _: None), [_slots(first, second)])
    assert first.wait_for_images()[0].max() == 11
    assert second.wait_for_images()[0].max() == 22
    assert reported == [0, 1, 2, 3, 4]


def test_a_failing_batch_is_halved_until_the_culprit_is_alone() -> None:
    def fail_on_poison(specs: Sequence[ImageSpec]) -> None:
        if any(spec.prompt == "poison" for spec in specs):
            raise RuntimeError("boom")

    good = [_attempt(f"good {i}", i) for i in range(7)]
    poison = _attempt("poison", 0)
    engine = RecordingEngine(8, fail_on_poison)
    _run(engine, [_slots(*good[:3], poison, *good[3:])])
    assert [attempt.wait_for_images()[0].max() for attempt in good] == list(range(7))
    with pytest.raises(DeviceError, match="RuntimeError: boom"):
        poison.wait_for_images()
    assert [len(batch) for batch in engine.batches] == [8, 4, 4, 2, 2, 1, 1]


def test_the_loop_goes_on_after_a_batch_that_failed_whole() -> None:
    def fail_first(specs: Sequence[ImageSpec]) -> None:
        if specs[0].prompt == "bad":
            raise MemoryError

    bad, good = _attempt("bad", 1), _attempt("good", 2)
    _run(RecordingEngine(8, fail_first), [_slots(bad), _slots(good)])
    assert good.wait_for_images()[0].max() == 2
    with pytest.raises(DeviceError):
        bad.wait_for_images()


def test_sick_devices_blame_no_prompt_and_give_the_batch_up_whole() -> None:
    def fail_first(specs: Sequence[ImageSpec]) -> None:
        if specs[0].prompt == "a":
            raise RuntimeError("the device is lost")

    hurt, mate, later = _attempt("a", 1), _attempt("b", 2), _attempt("c", 3)
    engine, given_up = RecordingEngine(8, fail_first), GivenUp()
    batch = _slots(hurt, mate)
    _run(engine, [batch, _slots(later)], SickAtFirst(engine, MemoryStore(), 0), given_up)
    assert given_up.batches == [batch]
    assert [len(batch) for batch in engine.batches] == [2, 1]
    assert later.wait_for_images()[0].max() == 3


def test_devices_that_fail_every_job_are_not_believed_for_ever() -> None:
    def fail(specs: Sequence[ImageSpec]) -> None:
        raise RuntimeError("the device is lost")

    jobs = [_attempt(f"job {i}", i) for i in range(18)]
    engine, given_up = RecordingEngine(8, fail), GivenUp()
    _run(engine, [_slots(job) for job in jobs], AlwaysWell(engine, MemoryStore(), 0), given_up)
    assert given_up.batches == [_slots(job) for job in jobs[16:]]


def test_the_halves_of_a_failed_batch_do_not_wait_for_sick_devices_to_recover() -> None:
    def fail(specs: Sequence[ImageSpec]) -> None:
        raise RuntimeError("the device is lost")

    jobs = [_attempt(f"job {i}", i) for i in range(4)]
    engine, given_up = RecordingEngine(8, fail), GivenUp()
    health = WellOnce(engine, MemoryStore(), 0)
    _run(engine, [_slots(*jobs)], health, given_up)
    assert (given_up.batches, given_up.waiting) == ([_slots(*jobs[:2])], [_slots(*jobs[2:])])
    assert all(job.ended for job in jobs)
    assert [len(batch) for batch in engine.batches] == [4, 2]


def test_an_error_about_the_job_does_not_ask_the_devices() -> None:
    def refuse(specs: Sequence[ImageSpec]) -> None:
        raise InvalidRequest("image", "x", "cannot be read")

    refused = _attempt("a", 1)
    engine = RecordingEngine(8, refuse)
    _run(engine, [_slots(refused)], SickAtFirst(engine, MemoryStore(), 0))
    with pytest.raises(InvalidRequest):
        refused.wait_for_images()


def test_the_known_picture_runs_on_the_engine_and_tells_its_failure() -> None:
    def fail(specs: Sequence[ImageSpec]) -> None:
        raise RuntimeError("the device is lost")

    assert HealthCheck(RecordingEngine(8, lambda _: None), MemoryStore(), 0).devices_ok()
    assert not HealthCheck(RecordingEngine(8, fail), MemoryStore(), 0).devices_ok()


def test_each_attempt_hears_which_of_its_pictures_were_flagged() -> None:
    shocking, mild = _attempt("shocking", 1), _attempt("mild", 2)
    _run(RecordingEngine(8, lambda _: None), [_slots(shocking, mild)])
    assert shocking.wait_for_images()
    assert mild.wait_for_images()
    assert (shocking.flagged, mild.flagged) == ({0}, set())
