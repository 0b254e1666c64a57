"""A host on which everything fails is told apart from prompts that fail everywhere."""

import threading
from collections.abc import Callable, Sequence

import pytest

from imagefleet.shared.errors import DeviceError
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.devices.device_loop import DeviceLoop
from imagefleet.worker.devices.failure_streak import (
    MAX_CONSECUTIVE_FAILURES,
    MIN_SUCCEEDED_ELSEWHERE,
    FailureStreak,
)
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.devices.slots import Slot, Work, slots_of
from imagefleet.worker.engine.contract.interface import KNOWN_PROMPT, ImageSpec
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt
from tests.support.engines import INFO, RecordingEngine


def _attempts(count: int) -> list[Attempt]:
    request = JobRequest.parse({"prompt": "p", "seed": 1})
    return [plan_attempt(f"job-{number}", request, INFO) for number in range(count)]


class _Host:
    """A device loop whose quarantines are recorded and end at once."""

    def __init__(
        self,
        on_batch: Callable[[Sequence[ImageSpec]], None],
        succeeded: Callable[[Sequence[Work]], int] = lambda works: 0,
    ) -> None:
        self.engine = RecordingEngine(2, on_batch)
        self.quarantines: list[str] = []
        self.requeued: list[Slot] = []
        self.health = HealthCheck(self.engine, MemoryStore(), 0)
        self.health.recover = self._recover  # type: ignore[method-assign]
        self.streak = FailureStreak(succeeded)

    def _recover(
        self, stopping: threading.Event, reason: str, check: Callable[[], bool] | None = None
    ) -> None:
        self.quarantines.append(reason)

    def run(self, attempts: Sequence[Attempt]) -> list[str]:
        """Run each attempt in a batch of its own. Return `image`, `error` or `requeued` of each."""
        queue, empty = [slots_of(attempt) for attempt in attempts], threading.Event()

        def next_batch() -> Sequence[Slot]:
            if not queue:
                empty.set()
            return queue.pop(0) if queue else []

        loop = DeviceLoop(
            *(self.engine, next_batch, lambda *_: None, 0.001, self.health),
            lambda failed, waiting, reason: self.requeued.extend([*failed, *waiting]),
            self.streak,
        )
        loop.start()
        assert empty.wait(300)
        loop.stop()
        assert loop.join(300)
        return [self._outcome(attempt) for attempt in attempts]

    def _outcome(self, attempt: Attempt) -> str:
        if attempt in {slot.work for slot in self.requeued}:
            return "requeued"
        try:
            attempt.wait_for_images()
        except DeviceError:
            return "error"
        return "image"


def _fail_jobs(specs: Sequence[ImageSpec]) -> None:
    if any(spec.prompt != KNOWN_PROMPT for spec in specs):
        raise RuntimeError("boom")


def test_prompts_that_fail_never_quarantine_a_host_that_makes_the_known_image() -> None:
    host = _Host(_fail_jobs)
    assert set(host.run(_attempts(5 * MAX_CONSECUTIVE_FAILURES))) == {"error"}
    assert host.quarantines == []
    whole = [batch for batch in host.engine.batches if len(batch) == host.engine.capacity]
    assert len(whole) == 4  # a whole batch after each 16 failures
    assert {spec.steps for batch in whole for spec in batch} == {INFO.default_num_inference_steps}


def test_a_host_that_makes_one_step_but_no_whole_batch_is_quarantined() -> None:
    def fail_all_but_one_step(specs: Sequence[ImageSpec]) -> None:
        if len(specs) > 1 or specs[0].num_inference_steps > 1:
            raise RuntimeError("out of memory")

    host = _Host(fail_all_but_one_step)
    outcomes = host.run(_attempts(MAX_CONSECUTIVE_FAILURES + 1))
    assert outcomes[-1] == "requeued"
    [reason] = host.quarantines
    assert "whole batch" in reason
    assert "out of memory" in reason


@pytest.mark.parametrize(
    ("elsewhere", "outcome"),
    [(MIN_SUCCEEDED_ELSEWHERE, "requeued"), (MIN_SUCCEEDED_ELSEWHERE - 1, "error")],
)
def test_jobs_that_fail_here_and_succeed_elsewhere_quarantine_the_host(
    elsewhere: int, outcome: str
) -> None:
    host = _Host(_fail_jobs, lambda works: elsewhere)
    jobs = _attempts(MIN_SUCCEEDED_ELSEWHERE + 1)
    assert host.run(jobs) == ["error"] * MIN_SUCCEEDED_ELSEWHERE + [outcome]
    assert len(host.quarantines) == (outcome == "requeued")


def test_tries_of_one_job_count_once() -> None:
    streak = FailureStreak(len)
    request = JobRequest.parse({"prompt": "p", "seed": 1})
    for job_id in ("a", "a", "b", "a", "b"):
        streak.add(slots_of(plan_attempt(job_id, request, INFO)))
    assert not streak.is_long()
    assert not streak.proof()
    streak.add(slots_of(plan_attempt("c", request, INFO)))
    assert streak.proof() == "of 3 jobs that failed here in a row 3 succeeded elsewhere"


def test_an_image_ends_the_row_of_failures() -> None:
    def fail_others(specs: Sequence[ImageSpec]) -> None:
        if specs[0].seed == 1 and specs[0].prompt != KNOWN_PROMPT:
            raise RuntimeError("boom")

    host = _Host(fail_others, lambda works: len(works))
    jobs = _attempts(2 * MIN_SUCCEEDED_ELSEWHERE)
    good = plan_attempt("good", JobRequest.parse({"prompt": "p", "seed": 2}), INFO)
    half = MIN_SUCCEEDED_ELSEWHERE
    outcomes = host.run([*jobs[: half - 1], good, *jobs[half:]])
    assert outcomes.count("image") == 1
    assert host.quarantines == []


def test_devices_that_fail_the_known_image_are_quarantined_at_once() -> None:
    def fail(specs: Sequence[ImageSpec]) -> None:
        raise RuntimeError("the device is lost")

    host = _Host(fail)
    assert host.run(_attempts(1)) == ["requeued"]
    assert host.quarantines == ["the devices failed: the device is lost"]
