"""The audit of a chaos run: counts, and a sentence for each thing that must not have happened.

Each `audit_…` reads one kind of result and writes into the report. What is expected follows from
the planned jobs alone; the audit takes nothing from the fleet's own counters, but
compares them with the records.
"""

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from imagefleet.shared.errors import TooManyDeliveries
from imagefleet.shared.jobs.dead_letters import DeadLetter
from imagefleet.shared.jobs.fleet_status import FleetReader
from imagefleet.shared.jobs.model import TERMINAL, CallbackEvent, State
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from tests.chaos.fleet import Worker
from tests.chaos.planned_jobs import ALLOWED_STATES, TENANTS, PlannedJob, Scenario
from tests.chaos.webhook_receiver import FlakyReceiver

_MAX_SHOWN: Final = 5
_COMPARED_PRIORITIES: Final = (3, 4, 5)
"""These share one priority level, so that only their tenants differ."""
_MIN_WAITS: Final = 8
"""A tenant with fewer compared jobs is not judged: the median would be luck."""
_MAY_REMAIN: Final = (
    "celery-task-meta-",  # Celery's results, until they expire
    "celery-taskset-meta-",  # and those of its groups
    "_kombu.binding",  # the queues that Celery's producers declared
    "unacked_mutex",  # kombu's lock, if its holder was killed; it expires after 5 minutes
    "{namespace}:job:",
    "{namespace}:bulk",  # records of datasets
    "{namespace}:catalogue",
    "{namespace}:lanes",
    "{namespace}:ends",
    "{namespace}:failures:",  # counts of the last hour
    "{namespace}:http-",  # lists of jobs, the secret of addresses, and which job a request made
    "{namespace}:dead",
    "{namespace}:outbox:log",
    "{namespace}:outbox:answered",  # at most 10,000 receivers; see docs/redis.md
)


@dataclass(kw_only=True)
class AuditReport:
    """The report holds sections of counts and a list of problems."""

    title: str
    sections: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def note(self, section: str, what: str, count: object) -> None:
        self.sections.setdefault(section, {})[what] = str(count)

    def expect_none(self, section: str, what: str, statuses: Collection[object]) -> None:
        """Note a count that must be 0, and a problem if it is not."""
        self.note(section, f"**{what}**", len(statuses))
        if statuses:
            some = ", ".join(str(each) for each in list(statuses)[:_MAX_SHOWN])
            self.problems.append(f"{what}: {len(statuses)} ({some})")

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", "| | |", "|---|---:|"]
        for section, rows in self.sections.items():
            lines += [f"| *{section}* | |", *(f"| {what} | {n} |" for what, n in rows.items())]
        return "\n".join([*lines, ""])


def audit_records(
    report: AuditReport,
    planned: Sequence[PlannedJob],
    accepted: Collection[str],
    statuses: Mapping[str, JobStatus],
    first_terminal: Mapping[str, str],
) -> None:
    """Check that every accepted job has one terminal record, the right one, that never changed.

    `first_terminal` maps a job to its `terminal_fields` when its end was first observed.
    """
    section = "jobs"
    report.note(section, "submitted", len(accepted))
    states = Counter(statuses[job_id].state for job_id in accepted if job_id in statuses)
    for state in State:
        if states[state] or state in (State.SUCCEEDED, State.FAILED, State.CANCELLED):
            report.note(section, f"{state}", states[state])
    report.note(section, "poison", sum(job.poison for job in planned))
    redelivered = [status for status in statuses.values() if status.deliveries > 1]
    report.note(section, "delivered more than once", len(redelivered))
    thrice = sum(status.deliveries > 2 for status in redelivered)
    report.note(section, "delivered more than twice", thrice)
    report.note(section, "retries of failed attempts", sum(s.retries for s in statuses.values()))
    ended = {job_id for job_id, status in statuses.items() if status.done}
    report.expect_none(section, "never accepted", {job.id for job in planned} - set(accepted))
    report.expect_none(section, "lost", set(accepted) - ended)
    report.expect_none(section, "foreign records", statuses.keys() - {job.id for job in planned})
    report.expect_none(section, "wrong terminal states", list(_wrong_states(planned, statuses)))
    changed = [
        i
        for i, end in first_terminal.items()
        if i not in statuses or end != terminal_fields(statuses[i])
    ]
    report.expect_none(section, "changed after they ended", changed)


def terminal_fields(status: JobStatus) -> str:
    """Return as JSON what a producer can see of a job that ended."""
    return status.model_dump_json(include={"state", "result", "error", "finished_at"})


def _wrong_states(
    planned: Iterable[PlannedJob], statuses: Mapping[str, JobStatus]
) -> Iterable[str]:
    for job in planned:
        status = statuses.get(job.id)
        if status is None or not status.done:
            continue
        code = status.error and status.error.code
        kills = job.scenario is Scenario.KILLS_WORKER and code != TooManyDeliveries.code
        if status.state not in ALLOWED_STATES[job.scenario] or kills:
            yield f"{job.id} was planned to {job.scenario}, is {status.state} {status.error or ''}"


def audit_callbacks(
    report: AuditReport,
    planned: Iterable[PlannedJob],
    statuses: Mapping[str, JobStatus],
    receiver: FlakyReceiver,
) -> None:
    """Check that each job with a callback URL has one callback id, that of its terminal state."""
    section = "callbacks"
    expected = {
        f"{job.id}.{CallbackEvent(statuses[job.id].state)}": job.id
        for job in planned
        if "callback_url" in job.parameters and job.id in statuses and statuses[job.id].done
    }
    accepted, events = receiver.accepted, receiver.events
    ids_of = Counter(events.values())
    report.note(section, "expected", len(expected))
    report.note(section, "accepted by the receiver", len(accepted))
    report.note(section, "refused while it was down", receiver.refused)
    report.note(section, "cut off when the sender died", receiver.cut_off)
    report.note(section, "accepted more than once, same id", len(_repeated(accepted)))
    report.expect_none(
        section, "missing", [expected[each] for each in expected.keys() - ids_of.keys()]
    )
    report.expect_none(section, "of another event or job", ids_of.keys() - expected.keys())
    report.expect_none(section, "accepted under several ids", _repeated(ids_of))
    report.note(section, "badly signed", receiver.unverified)
    if receiver.unverified:
        report.problems.append(f"{receiver.unverified} callbacks were badly signed")


def _repeated(accepted: Counter[str]) -> list[str]:
    return [each for each, times in accepted.items() if times > 1]


def audit_tenants(
    report: AuditReport, planned: Iterable[PlannedJob], statuses: Mapping[str, JobStatus]
) -> None:
    """Check that no tenant waited longer than the flooding one.

    Only first attempts of one priority level are compared, and only of jobs that were submitted
    while the first half of the flood was waiting: what comes later waits for another queue. A
    tenant with few of them is not judged.
    """
    starts = list(_first_starts(planned, statuses))
    begin, end = _flood_time(starts)
    waits: dict[str | None, list[float]] = {tenant: [] for tenant in TENANTS}
    for start in starts:
        if begin <= start.submitted_at <= end:
            waits[start.tenant].append(start.started_at - start.submitted_at)
    medians = {tenant: statistics.median(each or [0.0]) for tenant, each in waits.items()}
    for tenant, each in waits.items():
        summary = (
            f"{len(each)} jobs, waited {medians[tenant]:.1f} s (median), {max(each or [0]):.1f}"
        )
        report.note("tenants", tenant or "none", f"{summary} (longest)")
    judged = [tenant for tenant, each in waits.items() if len(each) >= _MIN_WAITS]
    limit = 1.2 * medians["flood"] + 5.0
    starved = [tenant for tenant in judged if "flood" in judged and medians[tenant] > limit]
    report.expect_none("tenants", "waited longer than the one that floods", starved)


class _Start(NamedTuple):
    tenant: str | None
    submitted_at: float
    started_at: float


def _first_starts(
    planned: Iterable[PlannedJob], statuses: Mapping[str, JobStatus]
) -> Iterator[_Start]:
    """Yield when the compared jobs were submitted and started."""
    for job in planned:
        status = statuses.get(job.id)
        if status is None or status.started_at is None or status.deliveries != 1:
            continue
        if job.parameters["priority"] in _COMPARED_PRIORITIES and not status.retries:
            yield _Start(job.parameters["tenant"], status.submitted_at, status.started_at)


def _flood_time(starts: Sequence[_Start]) -> tuple[float, float]:
    """Return from when until when the first half of the flooding tenant's jobs was waiting.

    A tenth of them, which started last, do not count: faults delay some for long.
    """
    flood = sorted(each.submitted_at for each in starts if each.tenant == "flood")
    if not flood:
        return 0.0, 0.0
    middle = flood[(len(flood) - 1) // 2]
    ends = sorted(
        each.started_at for each in starts if each.tenant == "flood" and each.submitted_at <= middle
    )
    return flood[0], ends[9 * (len(ends) - 1) // 10]


def audit_ends(report: AuditReport, ended: Sequence[Worker]) -> None:
    """Check that no worker ended by itself during the faults."""
    section = "injected faults"
    faults = Counter(worker.fault() for worker in ended)
    for fault, count in sorted((fault, n) for fault, n in faults.items() if fault is not None):
        report.note(section, f"workers ended by {fault}", count)
    by_themselves = [worker for worker in ended if worker.fault() is None]
    report.expect_none(section, "workers that ended without a fault", by_themselves)


def audit_keys(
    report: AuditReport,
    lanes: Lanes,
    failed: Collection[str],
    dead_letters: Iterable[DeadLetter],
) -> None:
    """Check that Redis holds only records, results and the dead letters of the failed jobs."""
    left = [key for lane in lanes for key in _left_in(lane, alone=len(lanes) == 1)]
    section = "left in Redis"
    report.expect_none(section, "queues, claims, leases, deliveries, retries, callbacks", left)
    report.expect_none(section, "ends that differ from the records", _wrong_ends(lanes))
    given_up = {each.job_id or each.id for each in dead_letters}
    report.note(section, "dead letters", len(given_up))
    report.expect_none(section, "failed without a dead letter", set(failed) - given_up)
    report.expect_none(section, "dead letters of jobs that did not fail", given_up - set(failed))


def _left_in(lane: Lane, *, alone: bool) -> list[str]:
    """Return what should not be left in a lane, or in a server that no other lane uses."""
    may_stay = tuple(prefix.format(namespace=lane.namespace) for prefix in _MAY_REMAIN)
    found = lane.client.scan_iter(None if alone else f"{lane.namespace}*", count=1000)
    return [key for key in found if not key.startswith(may_stay)]


def _wrong_ends(lanes: Lanes) -> list[str]:
    """Return the terminal states of which the fleet counted another number of ends than there are
    records. (No job of a chaos run is redriven, and no record expires.)"""
    recorded: Counter[str] = Counter()
    for lane in lanes:
        keys = list(lane.client.scan_iter(f"{lane.namespace}:job:*", count=1000))
        with lane.client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hget(key, "state")
            recorded += Counter(cast(list[str], pipe.execute()))
    counted: Counter[str] = Counter()
    for name, number in FleetReader(lanes).read().job_ends.items():
        counted[name.partition(":")[0]] += number
    return [
        f"{state}: {counted[state]} counted, {recorded[state]} recorded"
        for state in sorted(TERMINAL)
        if counted[state] != recorded[state]
    ]
