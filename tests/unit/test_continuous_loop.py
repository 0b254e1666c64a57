"""Continuous batching delivers images, frees slots between steps, and judges failures by slot."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from imagefleet.shared.errors import DeviceError, ImagefleetError, JobCancelled
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.devices.continuous_loop import ContinuousLoop
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.devices.shared_slots import SharedSlots
from imagefleet.worker.devices.slots import Slot, slots_of
from imagefleet.worker.devices.stream_metrics import StreamMetrics
from imagefleet.worker.devices.stream_runner import StreamRunner
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.fake.fake_engine import FAIL, HANG, FakeEngine
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt

SMALL, WIDE = Shape(height=64, width=64), Shape(height=64, width=128)
_TIMEOUT_S = 60.0


@dataclass
class Fixture:
    """A loop with a fake engine, and what it was given and reported."""

    streams: int = 1
    slots: int = 2
    seconds: float = 0.001
    failure_file: Path | None = None
    waiting: list[Slot] = field(default_factory=list)
    snapshots: list[Mapping[Slot, int]] = field(default_factory=list)
    failures: list[tuple[Sequence[Slot], Sequence[Slot]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = FakeEngine(
            seconds=self.seconds,
            capacity=self.streams * self.slots,
            streams=self.streams,
            shapes=[SMALL, WIDE],
            failure_file=self.failure_file,
        )
        self.streams_of_engine = self.engine.open_streams()
        self.health = HealthCheck(self.engine, MemoryStore(), 3600.0, self.streams_of_engine)
        self.lock = threading.Lock()
        self.loop = ContinuousLoop(
            self.streams_of_engine,
            self.slots,
            self._next_slots,
            self.snapshots.append,
            0.001,
            self.health,
            self._note_failure,
        )

    def _note_failure(self, batch: Sequence[Slot], waiting: Sequence[Slot], reason: str) -> None:
        self.failures.append((batch, waiting))

    def _next_slots(self, free_slots: int, prefer: Shape | None) -> list[Slot]:
        with self.lock:
            claimed = self.waiting[:free_slots]
            del self.waiting[:free_slots]
            return claimed

    def submit(self, *attempts: Attempt) -> None:
        with self.lock:
            self.waiting += [slot for attempt in attempts for slot in slots_of(attempt)]

    def run(self, *attempts: Attempt) -> None:
        """Run these attempts to their ends."""
        self.submit(*attempts)
        self.loop.start()
        for attempt in attempts:
            _wait_until(partial(_has_ended, attempt))
        self.stop()

    def stop(self) -> None:
        self.loop.stop()
        assert self.loop.join(_TIMEOUT_S)

    def together(self, *attempts: Attempt) -> bool:
        """Return whether these attempts were ever denoised at the same time."""
        return any(
            set(attempts) <= {slot.work for slot, done in steps.items() if done < slot.spec.steps}
            for steps in list(self.snapshots)
        )


def _attempt(name: str, steps: int = 4, shape: Shape = SMALL, images: int = 1) -> Attempt:
    request = JobRequest(
        prompt=name,
        seed=1,
        num_inference_steps=steps,
        num_images_per_prompt=images,
        height=shape.height,
        width=shape.width,
    )
    return plan_attempt(name, request, FakeEngine(shapes=[SMALL, WIDE]).info)


def _has_ended(attempt: Attempt) -> bool:
    return attempt.ended


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def _error(attempt: Attempt) -> ImagefleetError | None:
    try:
        attempt.wait_for_images()
    except ImagefleetError as error:
        return error
    return None


@pytest.mark.parametrize(("streams", "slots"), [(1, 1), (1, 4), (4, 1), (2, 2)])
def test_every_job_gets_the_images_that_whole_batches_give(streams: int, slots: int) -> None:
    jobs = [_attempt(f"job {n}", steps=1 + n % 5, images=1 + n % 2) for n in range(12)]
    Fixture(streams=streams, slots=slots).run(*jobs)
    for job in jobs:
        expected = FakeEngine().start_batch(job.specs, SMALL).images()
        assert [image.tobytes() for image in job.wait_for_images()] == [
            image.tobytes() for image in expected
        ]


def test_a_short_job_leaves_and_the_next_one_enters_while_a_long_one_goes_on() -> None:
    long, first, second = _attempt("long", 1000), _attempt("first", 5), _attempt("second", 5)
    fixture = Fixture(seconds=0.02)
    fixture.submit(long, first, second)
    fixture.loop.start()
    _wait_until(lambda: second.ended)
    assert not long.ended
    long.abandon(JobCancelled("the test is over"))
    fixture.stop()
    assert fixture.together(long, first)
    assert fixture.together(long, second)
    assert not fixture.together(first, second)


def test_a_cancelled_slot_is_free_while_its_neighbour_goes_on() -> None:
    neighbour, cancelled, later = _attempt("n", 1000), _attempt("c", 1000), _attempt("later", 3)
    fixture = Fixture(seconds=0.02)
    fixture.submit(neighbour, cancelled)
    fixture.loop.start()
    _wait_until(lambda: fixture.together(neighbour, cancelled))
    cancelled.abandon(JobCancelled("it was cancelled"))
    fixture.submit(later)
    _wait_until(lambda: later.ended)
    assert fixture.together(neighbour, later)
    assert not neighbour.ended
    neighbour.abandon(JobCancelled("the test is over"))
    fixture.stop()


def test_the_next_job_takes_a_cancelled_slot_before_the_next_step() -> None:
    fixture = Fixture()
    neighbour, cancelled, later = _attempt("n", 9), _attempt("c", 9), _attempt("later", 9)
    shared_slots, metrics = SharedSlots(1, 2), StreamMetrics()

    def cancel_during_a_step(_: Mapping[Slot, int]) -> None:
        cancelled.abandon(JobCancelled("it was cancelled"))

    runner = StreamRunner(
        0,
        fixture.streams_of_engine[0],
        shared_slots,
        cancel_during_a_step,
        lambda *_: None,
        lambda: None,
        metrics,
    )
    shared_slots.add([*slots_of(neighbour), *slots_of(cancelled)])
    runner.advance(shared_slots.wait_for_work(0) or {})
    shared_slots.add(slots_of(later))
    assert shared_slots.wait_for_work(0) == {1: slots_of(later)[0]}


def test_a_failing_job_among_good_ones_fails_alone() -> None:
    good = [_attempt(f"good {n}", 30) for n in range(6)]
    bad = _attempt(f"bad {FAIL}", 30)
    fixture = Fixture(streams=1, slots=4)
    fixture.run(*good[:2], bad, *good[2:])
    assert [_error(job) for job in good] == [None] * 6
    assert isinstance(_error(bad), DeviceError)
    assert not fixture.failures


def test_only_the_stream_that_fails_is_bisected() -> None:
    good = [_attempt(f"good {n}", 40) for n in range(3)]
    bad = _attempt(f"bad {FAIL}", 40)
    fixture = Fixture(streams=4, slots=1)
    fixture.run(*good, bad)
    assert [_error(job) for job in good] == [None] * 3
    assert isinstance(_error(bad), DeviceError)


def test_an_image_that_the_engine_refuses_does_not_touch_its_neighbours() -> None:
    foreign = _attempt("foreign")
    foreign.shape = Shape(height=8, width=8)
    good = _attempt("good", 20)
    Fixture(streams=2).run(good, foreign)
    assert _error(good) is None
    error = _error(foreign)
    assert isinstance(error, DeviceError)
    assert "not declared" in str(error)


def test_two_shapes_take_turns_on_one_stream_and_both_end() -> None:
    jobs = [_attempt(f"{n}", 5, shape=WIDE if n % 3 else SMALL) for n in range(12)]
    fixture = Fixture(streams=1, slots=2)
    fixture.run(*jobs)
    assert all(_error(job) is None for job in jobs)
    shapes = [{slot.work.shape for slot in steps} for steps in fixture.snapshots]
    assert {WIDE} in shapes
    assert {SMALL} in shapes


def test_work_that_runs_alone_has_the_devices_to_itself() -> None:
    jobs = [_attempt(f"{n}", 15) for n in range(6)]
    lone = jobs[3]
    lone.alone = True
    fixture = Fixture(streams=2, slots=2)
    fixture.run(*jobs)
    assert all(_error(job) is None for job in jobs)
    assert not any(fixture.together(lone, other) for other in jobs if other is not lone)


def test_failing_devices_requeue_what_failed_and_what_waited_and_recover(tmp_path: Path) -> None:
    fixture = Fixture(streams=2, slots=1, seconds=0.02, failure_file=tmp_path / "failing")
    jobs = [_attempt(f"{n}", 1000) for n in range(2)]
    fixture.submit(*jobs)
    fixture.loop.start()
    _wait_until(lambda: fixture.together(*jobs))
    (tmp_path / "failing").touch()
    _wait_until(lambda: all(job.ended for job in jobs) and fixture.health.quarantined)
    requeued = {slot.work for both in fixture.failures for batch in both for slot in batch}
    assert requeued == set(jobs)
    (tmp_path / "failing").unlink()
    later = _attempt("later")
    fixture.submit(later)
    _wait_until(lambda: later.ended)
    assert _error(later) is None
    fixture.stop()


def test_a_hanging_stream_stops_counting_while_others_go_on() -> None:
    fixture = Fixture(streams=2, slots=1, seconds=0.02)
    hanging, running = _attempt(f"hangs {HANG}"), _attempt("runs", 1000)
    fixture.submit(hanging, running)
    fixture.loop.start()
    _wait_until(lambda: fixture.together(hanging, running))
    before = fixture.loop.progress_counts()
    _wait_until(lambda: fixture.loop.progress_counts() != before)
    after = fixture.loop.progress_counts()
    hung = [index for index in range(2) if after[index] == before[index]]
    assert len(hung) == 1
    assert [slot.work for slot in fixture.loop.on_devices(hung[0])] == [hanging]
    running.abandon(JobCancelled("the test is over"))
    fixture.engine.release()
    fixture.stop()


def test_progress_counts_the_steps_of_each_slot() -> None:
    first, second = _attempt("first", 6), _attempt("second", 3)
    fixture = Fixture()
    fixture.run(first, second)
    for attempt in (first, second):
        steps = [
            done
            for snapshot in fixture.snapshots
            for slot, done in snapshot.items()
            if slot.work is attempt
        ]
        assert steps == sorted(steps)
        assert steps[-1] <= attempt.specs[0].steps


def _one_runs_and_one_waits() -> tuple[Fixture, Attempt, Attempt]:
    fixture = Fixture(streams=1, slots=1, seconds=0.02)
    running, waiting = _attempt("running", 1000), _attempt("waiting")
    fixture.submit(running)
    fixture.loop.start()
    _wait_until(lambda: any(fixture.snapshots))
    fixture.loop._shared_slots.add(slots_of(waiting))
    return fixture, running, waiting


def test_slots_that_have_not_started_can_be_taken_back() -> None:
    fixture, running, waiting = _one_runs_and_one_waits()
    assert [slot.work for slot in fixture.loop.pop_waiting()] == [waiting]
    running.abandon(JobCancelled("the test is over"))
    fixture.stop()


def test_no_slot_starts_after_stop() -> None:
    fixture, running, waiting = _one_runs_and_one_waits()
    fixture.loop.stop()
    running.abandon(JobCancelled("its place is free now"))
    assert fixture.loop.join(_TIMEOUT_S)
    assert [slot.work for slot in fixture.loop.pop_waiting()] == [waiting]


def test_a_stream_that_finishes_nothing_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = Fixture()
    [stream] = fixture.streams_of_engine
    steps: list[int] = []

    def step() -> list[int]:
        steps.append(1)
        assert len(steps) < 1000, "the check goes on for ever"
        return []

    monkeypatch.setattr(stream, "step", step)
    assert not fixture.health.stream_ok(stream)
    assert len(steps) < 100
