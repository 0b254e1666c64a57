"""What became of everything: counts, and sentences about what must not have happened.

Each `audit_…` reads one kind of trace and writes into the ledger. No table of what is expected is
kept by the fleet: it all follows from the orders.
"""

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from redis import Redis

from imagefleet.shared.errors import TooManyDeliveries
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import CallbackEvent, JobStatus, State
from imagefleet.shared.webhooks.signature import webhook_id
from tests.chaos.mailbox import Mailbox
from tests.chaos.orders import ENDS, TENANTS, Fate, Order

_SHOWN: Final = 5
_COMPARED_PRIORITIES: Final = (3, 4, 5)
"""One level, so that only tenants differ."""
_MAY_STAY: Final = (
    "celery-task-meta-",  # Celery's results, until they expire
    "_kombu.binding",  # which queues Celery's producers named
    "{namespace}:job:",
    "{namespace}:catalogue",
    "{namespace}:dead",
    "{namespace}:outbox:log",
)


@dataclass(kw_only=True)
class Ledger:
    """Sections of counts, and what is wrong."""

    title: str
    sections: dict[str, dict[str, str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def note(self, section: str, what: str, count: object) -> None:
        self.sections.setdefault(section, {})[what] = str(count)

    def never(self, section: str, what: str, found: Collection[object]) -> None:
        """A count that must be 0."""
        self.note(section, f"**{what}**", len(found))
        if found:
            some = ", ".join(str(each) for each in list(found)[:_SHOWN])
            self.wrong.append(f"{what}: {len(found)} ({some})")

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", "| | |", "|---|---:|"]
        for section, rows in self.sections.items():
            lines += [f"| *{section}* | |", *(f"| {what} | {n} |" for what, n in rows.items())]
        return "\n".join([*lines, ""])


def audit_records(
    ledger: Ledger,
    orders: Sequence[Order],
    accepted: Collection[str],
    found: Mapping[str, JobStatus],
    first_ends: Mapping[str, str],
) -> None:
    """`first_ends`: what was seen of each job when it had just ended."""
    section = "jobs"
    ledger.note(section, "submitted", len(accepted))
    states = Counter(found[job_id].state for job_id in accepted if job_id in found)
    for state in State:
        if states[state] or state in (State.SUCCEEDED, State.FAILED, State.CANCELLED):
            ledger.note(section, f"{state}", states[state])
    ledger.note(section, "of them poison", sum(order.poison for order in orders))
    retold = [status for status in found.values() if status.deliveries > 1]
    ledger.note(section, "taken over from a dead worker", len(retold))
    ledger.note(section, "of them twice or more", sum(each.deliveries > 2 for each in retold))
    ledger.note(section, "retries of failed attempts", sum(s.retries for s in found.values()))
    ended = {job_id for job_id, status in found.items() if status.done}
    ledger.never(section, "never accepted", {order.id for order in orders} - set(accepted))
    ledger.never(section, "lost", set(accepted) - ended)
    ledger.never(section, "foreign records", found.keys() - {order.id for order in orders})
    ledger.never(section, "wrong ends", list(_wrong_ends(orders, found)))
    changed = [i for i, end in first_ends.items() if i not in found or end != end_of(found[i])]
    ledger.never(section, "changed after their end", changed)


def end_of(status: JobStatus) -> str:
    """Everything a producer can see of a job that ended."""
    return status.model_dump_json(include={"state", "result", "error", "finished_at"})


def _wrong_ends(orders: Iterable[Order], found: Mapping[str, JobStatus]) -> Iterable[str]:
    for order in orders:
        status = found.get(order.id)
        if status is None or not status.done:
            continue
        code = status.error and status.error.code
        deadly = order.fate is Fate.KILLER and code != TooManyDeliveries.code
        if status.state not in ENDS[order.fate] or deadly:
            yield f"{order.id} was to be {order.fate}, is {status.state} {status.error or ''}"


def audit_callbacks(
    ledger: Ledger, orders: Iterable[Order], found: Mapping[str, JobStatus], mailbox: Mailbox
) -> None:
    """Every job that asked has the callback of its end, under one id, and no other one."""
    section = "callbacks"
    owed = {
        webhook_id(f"{order.id}.{CallbackEvent(found[order.id].state)}"): order.id
        for order in orders
        if "callback_url" in order.parameters and order.id in found and found[order.id].done
    }
    accepted = mailbox.accepted
    ledger.note(section, "owed", len(owed))
    ledger.note(section, "accepted by the receiver", len(accepted))
    ledger.note(section, "refused while it was down", mailbox.refused)
    ledger.note(section, "cut off by a death", mailbox.cut_off)
    ledger.note(section, "accepted more than once, same id", len(_repeated(accepted)))
    ledger.never(section, "missing", [owed[each] for each in owed.keys() - accepted.keys()])
    ledger.never(section, "of another event or job", accepted.keys() - owed.keys())
    ledger.note(section, "badly signed", mailbox.forged)
    if mailbox.forged:
        ledger.wrong.append(f"{mailbox.forged} callbacks were badly signed")


def _repeated(accepted: Counter[str]) -> list[str]:
    return [each for each, times in accepted.items() if times > 1]


def audit_tenants(ledger: Ledger, orders: Iterable[Order], found: Mapping[str, JobStatus]) -> None:
    """Whoever floods waits itself. Only first attempts, of one priority level."""
    waits: dict[str | None, list[float]] = {tenant: [] for tenant in TENANTS}
    for order in orders:
        status = found.get(order.id)
        if status is None or status.started_at is None or status.deliveries != 1:
            continue
        if order.parameters["priority"] in _COMPARED_PRIORITIES and not status.retries:
            waited = status.started_at - status.submitted_at
            waits[order.parameters["tenant"]].append(waited)
    medians = {tenant: statistics.median(each or [0.0]) for tenant, each in waits.items()}
    for tenant, each in waits.items():
        told = f"{len(each)} jobs, waited {medians[tenant]:.1f} s (median), {max(each or [0]):.1f}"
        ledger.note("tenants", tenant or "none", f"{told} (longest)")
    starved = [tenant for tenant, median in medians.items() if median > medians["flood"] + 5.0]
    ledger.never("tenants", "waited longer than the one that floods", starved)


def audit_keys(ledger: Ledger, client: Redis, namespace: str, failed: Collection[str]) -> None:
    """Nothing in Redis but records, results, and the letters of the jobs that failed."""
    may_stay = tuple(prefix.format(namespace=namespace) for prefix in _MAY_STAY)
    left = [key for key in client.scan_iter(count=1000) if not key.startswith(may_stay)]
    section = "left in Redis"
    ledger.never(section, "queues, claims, leases, deliveries, retries, callbacks", left)
    letters = {letter.job_id for letter in DeadLetters(client, namespace).read()}
    ledger.note(section, "dead letters", len(letters))
    ledger.never(section, "failed without a dead letter", set(failed) - letters)
    ledger.never(section, "dead letters of jobs that did not fail", letters - set(failed))
