"""Whether another worker should have a job that failed here."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from imagefleet.shared.jobs.failed_attempts import FailedAttempt
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.worker_status import Member, WorkerState, WorkerStatus
from imagefleet.worker.jobs import other_workers
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt
from imagefleet.worker.jobs.other_workers import OtherWorkers
from tests.support.engines import INFO

HERE, THERE = "here:1:a", "there:1:b"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(other_workers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def _others(member: Member | None = None) -> OtherWorkers:
    shapes = tuple(map(str, INFO.shapes))
    status = WorkerStatus(
        worker=THERE, state=WorkerState.READY, model=INFO.name, shapes=shapes, member=member
    )
    registry: Any = SimpleNamespace(statuses=lambda: [status])
    return OtherWorkers(registry, HERE, INFO.name)


def _attempt(job_id: str = "j", model: str | None = None) -> Attempt:
    request = JobRequest.parse({"prompt": "p", "seed": 1, "model": model})
    return plan_attempt(job_id, request, INFO)


def _failures(*times: float) -> Sequence[FailedAttempt]:
    return [FailedAttempt(worker=HERE, code="device_error", at=at, message="m") for at in times]


@pytest.mark.parametrize(
    ("member", "model", "left"),
    [
        (None, None, True),  # a worker of an older release
        (Member(serves_default=True), None, True),
        (Member(serves_default=False), None, False),
        (Member(serves_default=False), INFO.name, True),
    ],
)
def test_only_workers_that_claim_such_jobs_should_have_them(
    member: Member | None, model: str | None, left: bool
) -> None:
    assert _others(member).should_have(_attempt(model=model), _failures(1)) is left


def test_the_wait_for_others_begins_anew_with_each_failure(clock: list[float]) -> None:
    others = _others()
    assert others.should_have(_attempt(), _failures(1))
    clock[0] += 301
    assert not others.should_have(_attempt(), _failures(1))
    assert others.should_have(_attempt(), _failures(1, 2))


def test_many_jobs_do_not_make_the_others_wait_anew(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_workers, "_MAX_JOBS", 2)
    others = _others()
    assert others.should_have(_attempt("old"), _failures(1))
    clock[0] += 200
    assert others.should_have(_attempt("a"), _failures(1))
    assert others.should_have(_attempt("b"), _failures(1))  # forgets `old` alone
    clock[0] += 200
    assert others.should_have(_attempt("b"), _failures(1))
    clock[0] += 101
    assert not others.should_have(_attempt("a"), _failures(1))
    assert not others.should_have(_attempt("b"), _failures(1))
