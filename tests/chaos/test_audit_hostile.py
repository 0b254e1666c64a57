"""The audit finds hostile cases that did not end, or ended wrongly, and workers that ended."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from imagefleet.shared.jobs.dead_letters import DeadLetter
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.status import JobStatus
from tests.chaos.audit import AuditReport, audit_ends
from tests.chaos.audit_hostile import (
    audit_hostile,
    audit_refusals,
    ids_of,
    split_dead_letters,
)
from tests.chaos.fleet import Fleet
from tests.chaos.hostile_cases import HostileCase, RightEnd, draw_hostile
from tests.chaos.planned_jobs import PlannedJob, draw_jobs
from tests.fuzz.cases import AnswerCase, MessageCase, RequestCase
from tests.support.hostile_messages import BROKEN_ENDS, HARMLESS, REFUSED
from tests.support.processes import until

_ALL = 90
"""More cases than there are kinds."""


def _planned() -> list[PlannedJob]:
    return draw_jobs(7, jobs=40, seconds=1.0, killers=0, callback_url="http://127.0.0.1/")


def _status(job_id: str, state: State) -> JobStatus:
    request = JobRequest(prompt="a", seed=1)
    return JobStatus(id=job_id, state=state, request=request, submitted_at=1.0)


def _letter(message: str) -> DeadLetter:
    return DeadLetter(
        id=message,
        job_id=None,
        code="message_rejected",
        reason="",
        at=1.0,
        deliveries=1,
        list_key="q",
        message=message,
    )


def _case(right_end: RightEnd) -> HostileCase:
    case = MessageCase(id="hostile-1", message=b"", queue="q")
    return HostileCase(name="a case", right_end=right_end, case=case)


@pytest.mark.parametrize(
    ("right_end", "refusal", "state", "problem"),
    [
        (RightEnd.REFUSED_AT_ONCE, "no", None, None),
        (RightEnd.REFUSED_AT_ONCE, None, State.SUCCEEDED, "ended as they must not"),
        (RightEnd.REFUSED, None, State.FAILED, None),
        (RightEnd.REFUSED, None, State.SUCCEEDED, "ended as they must not"),
        (RightEnd.DONE, None, State.SUCCEEDED, None),
        (RightEnd.DONE, None, State.FAILED, "ended as they must not"),
        (RightEnd.DONE, "no", None, "ended as they must not"),
        (RightEnd.ANY, None, State.FAILED, None),
        (RightEnd.ANY, None, State.RUNNING, "without record, dead letter or image"),
        (RightEnd.ANY, None, None, "without record, dead letter or image"),
    ],
)
def test_a_case_that_did_not_end_as_it_must_is_named(
    right_end: RightEnd, refusal: str | None, state: State | None, problem: str | None
) -> None:
    report = AuditReport(title="by hand")
    statuses = {} if state is None else {"hostile-1": _status("hostile-1", state)}
    audit_hostile(report, [_case(right_end)], [refusal], statuses, [])
    assert [each.partition(":")[0] for each in report.problems] == ([problem] if problem else [])


@pytest.mark.parametrize("right_end", [RightEnd.REFUSED, RightEnd.ANY])
def test_a_dead_letter_that_holds_a_part_of_its_message_is_an_end(right_end: RightEnd) -> None:
    report = AuditReport(title="by hand")
    letters = [_letter('{"headers": {"id": "hostile-1", "ta… (cut from 9 bytes)')]
    audit_hostile(report, [_case(right_end)], [None], {}, letters)
    assert report.problems == []
    planned, hostile = split_dead_letters([*letters, _letter('{"headers": {"id": "job-1"')])
    assert (len(planned), hostile) == (1, letters)


def test_a_refusal_that_tells_about_the_job_of_another_is_named() -> None:
    job = _planned()[0]
    case = RequestCase(id=job.id, parameters={"prompt": "another"})
    cases = [HostileCase(name="id in use", right_end=RightEnd.REFUSED_AT_ONCE, case=case)]
    for refusal, problems in (("is in use already", 0), (f"its prompt is {job.request.prompt}", 1)):
        report = AuditReport(title="by hand")
        audit_refusals(report, cases, [refusal], {job.id: job})
        assert len(report.problems) == problems


def test_a_seed_draws_the_same_cases_and_every_kind() -> None:
    first = draw_hostile(1, _ALL, _planned())
    assert first[:30] == draw_hostile(1, 30, _planned()) != draw_hostile(2, 30, _planned())
    names = {each.name for each in first}
    assert names > {*REFUSED, *HARMLESS, *BROKEN_ENDS, "id in use"}
    assert {each.case.role for each in first if isinstance(each.case, AnswerCase)} >= {
        "image",
        "callback",
    }
    assert len(ids_of(first)) == _ALL - sum(each.name == "id in use" for each in first)


def _exit_with_70() -> None:
    print("the last words")
    sys.exit(70)


def _sleep() -> None:
    time.sleep(600)


StartFleet = Callable[[Callable[[], None]], Fleet]


@pytest.fixture
def start_fleet(tmp_path: Path) -> Iterator[StartFleet]:
    folder = tmp_path / "workers"
    with ExitStack() as stack:
        yield lambda main: stack.enter_context(Fleet(folder, {}, size=1, main=main, imports=()))


def _problems_after_an_end(fleet: Fleet) -> list[str]:
    def has_ended() -> bool:
        fleet.refill()
        return bool(fleet.ended)

    until(has_ended)
    report = AuditReport(title="by hand")
    audit_ends(report, fleet.ended)
    return report.problems


def test_a_worker_that_ends_by_itself_is_named_with_its_last_words(
    start_fleet: StartFleet,
) -> None:
    [problem] = _problems_after_an_end(start_fleet(_exit_with_70))
    assert problem.startswith("workers that ended without a fault: ")
    assert "exit code 70" in problem
    assert "the last words" in problem


def test_a_worker_has_a_log_before_its_process_opens_it(start_fleet: StartFleet) -> None:
    assert all(worker.log.exists() for worker in start_fleet(_sleep).workers)


@pytest.mark.parametrize("fault", ["kill", "terminate"])
def test_a_worker_that_a_fault_ended_is_no_problem(start_fleet: StartFleet, fault: str) -> None:
    fleet = start_fleet(_sleep)
    getattr(fleet.workers[0], fault)()
    assert _problems_after_an_end(fleet) == []
