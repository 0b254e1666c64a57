"""Say in words what is wrong with a fleet now, by the thresholds of the alert rules.

Input: a snapshot, and what has happened lately. Output: the conditions that hold. The rules of
Prometheus in deploy/prometheus/alerts.yml also wait for a while and look at the metrics of worker
processes, which Redis does not have; a unit test holds names, thresholds and times equal.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from imagefleet.producer.fleet.queue_labels import OTHER, OfferedModels
from imagefleet.producer.fleet.recent_events import (
    CALLBACKS_WITHIN_S,
    DEAD_LETTERS_WITHIN_S,
    ENDS_WITHIN_S,
    RecentEvents,
)
from imagefleet.producer.fleet.snapshot import FleetSnapshot
from imagefleet.shared.jobs.fleet_status import QueueStatus
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.worker_status import WorkerState
from imagefleet.shared.redis_client.memory import ALMOST_FULL
from imagefleet.shared.text.printable import counted

RUNBOOK: Final = "docs/runbook.md#alerts"
_FULL: Final = 0.95
_QUEUE_OLD_S: Final = 3_600
_DATASET_IDLE_S: Final = 1_800
_FAILED_SHARE: Final = 0.05
_FAILED_JOBS: Final = 5
_CALLBACKS: Final = 1_000
_PAGE: Final = "page"
_TICKET: Final = "ticket"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Something is wrong now."""

    name: str
    """It is that of the alert."""
    severity: str
    """`page` cannot wait until morning, `ticket` can."""
    text: str
    what_to_do: str
    for_s: int
    """Prometheus sends the alert after it has held for so long."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule finds one kind of condition."""

    name: str
    severity: str = _TICKET
    above: tuple[float, ...] = (0,)
    """The numbers of the rule are above these."""
    within_s: int | None = None
    """The rule counts what has happened in so many seconds. None: it looks at what is now."""
    for_s: int = 0
    what_to_do: str
    find: Callable[[FleetSnapshot, RecentEvents], Iterable[str]]
    """It yields a sentence for each thing that is wrong."""


def conditions_of(snapshot: FleetSnapshot, recent: RecentEvents) -> list[Condition]:
    """Return what is wrong, the most urgent first."""
    found = [
        Condition(
            name=rule.name,
            severity=rule.severity,
            text=text,
            what_to_do=rule.what_to_do,
            for_s=rule.for_s,
        )
        for rule in RULES
        for text in rule.find(snapshot, recent)
    ]
    return sorted(found, key=lambda each: each.severity != _PAGE)


def _memory_above(share: float) -> Callable[[FleetSnapshot, RecentEvents], Iterator[str]]:
    def find(snapshot: FleetSnapshot, _: RecentEvents) -> Iterator[str]:
        memory = snapshot.memory
        if memory is not None and memory.limit and memory.used / memory.limit > share:
            yield f"Redis is filling up: {memory}. When it is full, no job is accepted."

    return find


def _no_worker(snapshot: FleetSnapshot, _: RecentEvents) -> Iterator[str]:
    status, models = snapshot.status, _models(snapshot)
    waiting = sum(each.waiting for each in status.queues if _is_offered(models, each))
    work = waiting + status.in_flight + status.delayed
    if work and not _workers(snapshot)[WorkerState.READY]:
        yield f"No worker takes work. Waiting or in flight: {counted(work, 'message')}."


def _model_without_worker(snapshot: FleetSnapshot, _: RecentEvents) -> Iterator[str]:
    models = _models(snapshot)
    ready = dict(models.ready_workers())
    for each in snapshot.status.queues:
        labels = models.labels(each)
        if each.waiting and (labels.shape == OTHER or not ready.get(labels.model)):
            yield (
                f"No worker serves the model {each.model} with the shape {each.shape}. Waiting for "
                f"it: {counted(each.waiting, 'message')}."
            )


def _queue_old(snapshot: FleetSnapshot, _: RecentEvents) -> Iterator[str]:
    models = _models(snapshot)
    for each in snapshot.status.queues:
        age_s = each.oldest_s
        if age_s is not None and age_s > _QUEUE_OLD_S and _is_offered(models, each):
            yield (
                f"A job for the model {each.model} with the shape {each.shape} has waited for "
                f"{age_s / 60:.0f} minutes."
            )


def _dataset_idle(snapshot: FleetSnapshot, _: RecentEvents) -> Iterator[str]:
    if snapshot.dataset_idle_s > _DATASET_IDLE_S:
        minutes = snapshot.dataset_idle_s / 60
        yield f"Nothing has changed in a running dataset for {minutes:.0f} minutes."


def _quarantined(snapshot: FleetSnapshot, _: RecentEvents) -> Iterator[str]:
    if count := _workers(snapshot)[WorkerState.QUARANTINED]:
        yield f"The devices or the store of {counted(count, 'worker')} fail."


def _hosts_differ(snapshot: FleetSnapshot, _: RecentEvents) -> Iterator[str]:
    differing = {each.worker for each in snapshot.status.differences if not each.allowed}
    if differing:
        yield (
            f"{counted(len(differing), 'worker')} and the others differ in what all should have in "
            "common, so it depends on the worker what becomes of a job."
        )


def _workers_lost(snapshot: FleetSnapshot, _: RecentEvents) -> Iterator[str]:
    count = _workers(snapshot)[WorkerState.LOST]
    if count and snapshot.status.in_flight:
        yield (
            f"The lease of {counted(count, 'worker')} expired, and no other worker took the "
            "messages over."
        )


def _jobs_fail(_: FleetSnapshot, recent: RecentEvents) -> Iterator[str]:
    ended = sum(recent.ends.values())
    for name, count in sorted(recent.ends.items()):
        state, _colon, code = name.partition(":")
        if state == State.FAILED and count > _FAILED_JOBS and count > _FAILED_SHARE * ended:
            yield f"{count:,} of {counted(ended, 'job')} of the last half hour failed with {code}."


def _dead_letters(_: FleetSnapshot, recent: RecentEvents) -> Iterator[str]:
    if recent.dead_letters:
        count = counted(recent.dead_letters, "message")
        yield f"The fleet gave up {count} within a quarter of an hour."


def _callbacks_given_up(_: FleetSnapshot, recent: RecentEvents) -> Iterator[str]:
    if recent.callbacks_given_up:
        yield f"Callbacks that were given up within an hour: {recent.callbacks_given_up:,}."


def _callbacks_pile_up(snapshot: FleetSnapshot, _: RecentEvents) -> Iterator[str]:
    if snapshot.status.callbacks > _CALLBACKS:
        yield f"Callbacks that wait to be delivered: {snapshot.status.callbacks:,}."


def _workers(snapshot: FleetSnapshot) -> Counter[WorkerState]:
    return Counter(worker.state for worker in snapshot.status.workers)


def _models(snapshot: FleetSnapshot) -> OfferedModels:
    return OfferedModels(snapshot.status.workers, snapshot.offers)


def _is_offered(models: OfferedModels, queue: QueueStatus) -> bool:
    labels = models.labels(queue)
    return OTHER not in (labels.model, labels.shape)


RULES: Final = (
    Rule(
        name="ImagefleetRedisFull",
        severity=_PAGE,
        above=(_FULL,),
        for_s=120,
        what_to_do="Drop dead letters, bound what may wait, or give Redis more memory, now.",
        find=_memory_above(_FULL),
    ),
    Rule(
        name="ImagefleetNoWorker",
        severity=_PAGE,
        for_s=600,
        what_to_do="Start hosts, and look at the states of the workers: exit codes say why they "
        "ended.",
        find=_no_worker,
    ),
    Rule(
        name="ImagefleetRedisMemory",
        above=(ALMOST_FULL,),
        for_s=600,
        what_to_do="Drop dead letters that nobody wants, bound what may wait (`imagefleet tenants "
        "--limit`), or give Redis more memory.",
        find=_memory_above(ALMOST_FULL),
    ),
    Rule(
        name="ImagefleetModelWithoutWorker",
        for_s=900,
        what_to_do="Start workers for it, or correct the producer and cancel the jobs. A host with "
        "several models may be about to switch.",
        find=_model_without_worker,
    ),
    Rule(
        name="ImagefleetQueueOld",
        above=(_QUEUE_OLD_S,),
        for_s=600,
        what_to_do="Add hosts, or look at the weights and priorities of the tenants.",
        find=_queue_old,
    ),
    Rule(
        name="ImagefleetDatasetIdle",
        above=(_DATASET_IDLE_S,),
        for_s=300,
        what_to_do="`imagefleet bulk status` says why workers left its shards; it may wait behind "
        "other work.",
        find=_dataset_idle,
    ),
    Rule(
        name="ImagefleetWorkerQuarantined",
        for_s=300,
        what_to_do="Look at the latest error of the worker: rights, disk and server of the store, "
        "or its devices.",
        find=_quarantined,
    ),
    Rule(
        name="ImagefleetHostsDiffer",
        for_s=1_800,
        what_to_do="Correct the settings of these hosts and start them again, or allow it by "
        "IMAGEFLEET_MAY_DIFFER.",
        find=_hosts_differ,
    ),
    Rule(
        name="ImagefleetWorkersLost",
        for_s=300,
        what_to_do="Start a worker: its next heartbeat requeues what they held.",
        find=_workers_lost,
    ),
    Rule(
        name="ImagefleetJobsFail",
        above=(_FAILED_SHARE, _FAILED_JOBS),
        within_s=ENDS_WITHIN_S,
        for_s=300,
        what_to_do="Look at the failed jobs and their code in the runbook.",
        find=_jobs_fail,
    ),
    Rule(
        name="ImagefleetDeadLetters",
        within_s=DEAD_LETTERS_WITHIN_S,
        what_to_do="The code of each dead letter says why. Mend the cause, then redrive them.",
        find=_dead_letters,
    ),
    Rule(
        name="ImagefleetCallbacksGivenUp",
        within_s=CALLBACKS_WITHIN_S,
        what_to_do="Tell the owner of the receiver, or allow its address by "
        "IMAGEFLEET_CALLBACK_ALLOW, then replay them.",
        find=_callbacks_given_up,
    ),
    Rule(
        name="ImagefleetCallbacksPileUp",
        above=(_CALLBACKS,),
        for_s=1_800,
        what_to_do="A receiver is away or slow, which delays only its own, or no worker lives to "
        "send them.",
        find=_callbacks_pile_up,
    ),
)
"""All rules of Prometheus that can be judged by what Redis knows. Whether the number of callbacks
grows is not looked at."""
