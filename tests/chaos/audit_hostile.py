"""The audit of the hostile input: each case ended, and as it had to."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from imagefleet.shared.jobs.dead_letters import DeadLetter
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.status import JobStatus
from tests.chaos.audit import AuditReport
from tests.chaos.hostile_cases import HOSTILE_ID, HostileCase, RightEnd
from tests.chaos.planned_jobs import PlannedJob


def audit_hostile(
    report: AuditReport,
    cases: Sequence[HostileCase],
    refusals: Sequence[str | None],
    statuses: Mapping[str, JobStatus],
    dead_letters: Iterable[DeadLetter],
) -> None:
    """Check that each case was refused, or ended in a record, a dead letter or images.

    `refusals` has the error with which the client refused each case, or None. `statuses` and
    `dead_letters` are those of the cases.
    """
    section = "hostile messages, requests and servers"
    report.note(section, "sent, of all kinds", len(cases))
    letters = {case_id: letter for letter in dead_letters for case_id in _ids_in(letter)}
    ends: Counter[str] = Counter()
    unended, wrong = [], []
    for hostile, refusal in zip(cases, refusals, strict=True):
        case_id = hostile.case.id
        end = _end(refusal, statuses.get(case_id), letters.get(case_id))
        if end is None:
            unended.append(f"{case_id}, {hostile.name}")
            continue
        ends[end] += 1
        if not _is_right(hostile.right_end, refusal, statuses.get(case_id)):
            wrong.append(f"{case_id}, {hostile.name}: {end}, not {hostile.right_end}")
    for end, count in sorted(ends.items()):
        report.note(section, end, count)
    report.expect_none(section, "without record, dead letter or image", unended)
    report.expect_none(section, "ended as they must not", wrong)


def audit_refusals(
    report: AuditReport,
    cases: Sequence[HostileCase],
    refusals: Sequence[str | None],
    planned: Mapping[str, PlannedJob],
) -> None:
    """Check that the refusal of an id in use tells nothing about the job that has it."""
    told = [
        f"{case.case.id}: {refusal}"
        for case, refusal in zip(cases, refusals, strict=True)
        if refusal is not None and case.case.id in planned
        for value in _private_values(planned[case.case.id])
        if value in refusal
    ]
    section = "hostile messages, requests and servers"
    report.expect_none(section, "told about the job of another", told)


def ids_of(cases: Iterable[HostileCase]) -> set[str]:
    """Return the ids of the cases that are not those of planned jobs."""
    return {case.case.id for case in cases if HOSTILE_ID.fullmatch(case.case.id)}


def split_dead_letters(
    dead_letters: Iterable[DeadLetter],
) -> tuple[list[DeadLetter], list[DeadLetter]]:
    """Return the dead letters of planned jobs, and those of hostile messages."""
    planned: list[DeadLetter] = []
    hostile: list[DeadLetter] = []
    for letter in dead_letters:
        (hostile if _ids_in(letter) else planned).append(letter)
    return planned, hostile


def _ids_in(letter: DeadLetter) -> set[str]:
    return set(HOSTILE_ID.findall(letter.message))


def _end(refusal: str | None, status: JobStatus | None, letter: DeadLetter | None) -> str | None:
    if refusal is not None:
        return "refused when submitted"
    if status is not None and status.done:
        return f"record: {status.state}" + (" (and a dead letter)" if letter else "")
    return None if letter is None else f"dead letter: {letter.code}"


def _is_right(right_end: RightEnd, refusal: str | None, status: JobStatus | None) -> bool:
    """Whether a case that has ended did so in the right way."""
    if right_end is RightEnd.REFUSED_AT_ONCE or refusal is not None:
        return right_end is RightEnd.REFUSED_AT_ONCE and refusal is not None
    if right_end is RightEnd.ANY:
        return True
    succeeded = status is not None and status.state is State.SUCCEEDED
    return succeeded == (right_end is RightEnd.DONE)


def _private_values(job: PlannedJob) -> Iterator[str]:
    for name in ("prompt", "tenant", "callback_url"):
        if value := job.parameters.get(name):
            yield str(value)
