"""The device loop delivers images, and one bad prompt fails no other job."""

import threading
from collections.abc import Callable, Sequence

import pytest

from imagefleet.shared.errors import DeviceError, InvalidRequest
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.devices.device_loop import DeviceLoop, OnDevicesFailed
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.devices.slots import Slot, slots_of
from imagefleet.worker.engine.contract.interface import ImageSpec, OutputArray
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt
from tests.support.engines import INFO, RecordedBatch, RecordingEngine


def _attempt(name: str, seed: int) -> Attempt:
    return plan_attempt(name, JobRequest.parse({"prompt": name, "seed": seed}), INFO)


class AlwaysHealthy(HealthCheck):
    """The health check of the devices always succeeds."""

    def devices_ok(self) -> bool:
        return True

    def recover(
        self, stopping: threading.Event, reason: str, check: Callable[[], bool] | None = None
    ) -> None:
        return


class FailingUntilRecovered(HealthCheck):
    """The devices fail until `recover` is called."""

    recovered = False

    def devices_ok(self) -> bool:
        return self.recovered

    def recover(
        self, stopping: threading.Event, reason: str, check: Callable[[], bool] | None = None
    ) -> None:
        self.recovered = True


class HealthyOnce(FailingUntilRecovered):
    """The devices fail from the second health check on, while a failed batch is bisected."""

    checks = 0

    def devices_ok(self) -> bool:
        self.checks += 1
        return self.checks == 1


class FailureRecorder:
    """Records the batches that failing devices had, and the slots that waited at that time."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Slot]] = []
        self.waiting: list[Sequence[Slot]] = []

    def __call__(self, batch: Sequence[Slot], waiting: Sequence[Slot], reason: str) -> None:
        self.batches.append(batch)
        self.waiting.append(waiting)


def _run(
    engine: RecordingEngine,
    batches: list[list[Slot]],
    health: HealthCheck | None = None,
    on_devices_failed: OnDevicesFailed = lambda batch, waiting, reason: None,
) -> list[int]:
    """Run `batches` to their end. Return the steps that were reported."""
    reported: list[int] = []
    queue = list(batches)
    empty = threading.Event()

    def next_batch() -> Sequence[Slot]:
        if queue:
            return queue.pop(0)
        empty.set()
        return []

    device_loop = DeviceLoop(
        engine,
        next_batch,
        lambda _, step: reported.append(step),
        0.001,
        health or AlwaysHealthy(engine, MemoryStore(), 0),
        on_devices_failed,
    )
    device_loop.start()
    assert empty.wait(300)
    device_loop.stop()
    assert device_loop.join(300)
    return reported


def _slots(*attempts: Attempt) -> list[Slot]:
    return [slot for attempt in attempts for slot in slots_of(attempt)]


def test_each_attempt_gets_its_own_image() -> None:
    first, second = _attempt("a", 11), _attempt("b", 22)
    reported = _run(RecordingEngine(8, lambda _: None), [_slots(first, second)])
    assert first.wait_for_images()[0].max() == 11
    assert second.wait_for_images()[0].max() == 22
    assert reported == [0, 1, 2, 3, 4]


def test_a_failing_batch_is_bisected_until_the_failing_job_is_alone() -> None:
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


def test_the_loop_continues_after_a_batch_failed() -> None:
    def fail_first(specs: Sequence[ImageSpec]) -> None:
        if specs[0].prompt == "bad":
            raise MemoryError

    bad, good = _attempt("bad", 1), _attempt("good", 2)
    _run(RecordingEngine(8, fail_first), [_slots(bad), _slots(good)])
    assert good.wait_for_images()[0].max() == 2
    with pytest.raises(DeviceError):
        bad.wait_for_images()


def test_failing_devices_fail_no_job_and_release_the_whole_batch() -> None:
    def fail_first(specs: Sequence[ImageSpec]) -> None:
        if specs[0].prompt == "a":
            raise RuntimeError("the device is lost")

    first, second, later = _attempt("a", 1), _attempt("b", 2), _attempt("c", 3)
    engine, failures = RecordingEngine(8, fail_first), FailureRecorder()
    batch = _slots(first, second)
    _run(engine, [batch, _slots(later)], FailingUntilRecovered(engine, MemoryStore(), 0), failures)
    assert failures.batches == [batch]
    assert [len(batch) for batch in engine.batches] == [2, 1]
    assert later.wait_for_images()[0].max() == 3


def test_devices_that_fail_every_job_count_as_failing_despite_their_health_check() -> None:
    def fail(specs: Sequence[ImageSpec]) -> None:
        raise RuntimeError("the device is lost")

    jobs = [_attempt(f"job {i}", i) for i in range(18)]
    engine, failures = RecordingEngine(8, fail), FailureRecorder()
    _run(engine, [_slots(job) for job in jobs], AlwaysHealthy(engine, MemoryStore(), 0), failures)
    assert failures.batches == [_slots(job) for job in jobs[16:]]


def test_the_halves_of_a_failed_batch_are_released_before_the_quarantine() -> None:
    def fail(specs: Sequence[ImageSpec]) -> None:
        raise RuntimeError("the device is lost")

    jobs = [_attempt(f"job {i}", i) for i in range(4)]
    engine, failures = RecordingEngine(8, fail), FailureRecorder()
    health = HealthyOnce(engine, MemoryStore(), 0)
    _run(engine, [_slots(*jobs)], health, failures)
    assert (failures.batches, failures.waiting) == ([_slots(*jobs[:2])], [_slots(*jobs[2:])])
    assert all(job.ended for job in jobs)
    assert [len(batch) for batch in engine.batches] == [4, 2]


def test_an_error_of_the_job_needs_no_health_check() -> None:
    def refuse(specs: Sequence[ImageSpec]) -> None:
        raise InvalidRequest("image", "x", "cannot be read")

    refused = _attempt("a", 1)
    engine = RecordingEngine(8, refuse)
    _run(engine, [_slots(refused)], FailingUntilRecovered(engine, MemoryStore(), 0))
    with pytest.raises(InvalidRequest):
        refused.wait_for_images()


def test_the_health_check_runs_the_engine_and_reports_its_failure() -> None:
    def fail(specs: Sequence[ImageSpec]) -> None:
        raise RuntimeError("the device is lost")

    assert HealthCheck(RecordingEngine(8, lambda _: None), MemoryStore(), 0).devices_ok()
    assert not HealthCheck(RecordingEngine(8, fail), MemoryStore(), 0).devices_ok()


def test_each_attempt_knows_which_of_its_images_were_flagged() -> None:
    shocking, mild = _attempt("shocking", 1), _attempt("mild", 2)
    _run(RecordingEngine(8, lambda _: None), [_slots(shocking, mild)])
    assert shocking.wait_for_images()
    assert mild.wait_for_images()
    assert (shocking.flagged, mild.flagged) == ({0}, set())


def test_an_image_that_fails_after_stop_fails_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    denoised, stopped = threading.Event(), threading.Event()

    def fail_late(batch: RecordedBatch) -> list[OutputArray]:
        denoised.set()
        assert stopped.wait(300)
        raise RuntimeError("the image cannot be copied")

    monkeypatch.setattr(RecordedBatch, "outputs", fail_late)
    engine, attempt = RecordingEngine(8, lambda _: None), _attempt("a", 1)
    batches = [_slots(attempt)]
    health = AlwaysHealthy(engine, MemoryStore(), 0)
    device_loop = DeviceLoop(
        *(engine, lambda: batches.pop() if batches else [], lambda *_: None, 0.001, health),
        FailureRecorder(),
    )
    device_loop.start()
    assert denoised.wait(300)
    device_loop.stop()
    device_loop.join(0.2)  # the thread must not end while the image is copied
    stopped.set()
    assert device_loop.join(300)
    with pytest.raises(DeviceError, match="cannot be copied"):
        attempt.wait_for_images()
