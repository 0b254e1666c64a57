"""Prometheus metrics of what only Redis knows: queues, workers, dead letters and callbacks.

One exporter per namespace is enough. It reads Redis at each scrape.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from imagefleet.producer.fleet.queue_labels import OfferedModels, QueueLabels
from imagefleet.producer.fleet.snapshot import FleetSnapshot
from imagefleet.shared.errors import (
    BrokerUnavailable,
    DeviceError,
    InputUnavailable,
    InvalidInput,
    InvalidRequest,
    JobExpired,
    MessageRejected,
    NewerMessage,
    StorageDenied,
    StorageUnavailable,
    TooManyDeliveries,
    WorkerError,
)
from imagefleet.shared.jobs.fleet_status import FleetStatus, QueueStatus
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.worker_status import Trait, WorkerState
from imagefleet.shared.redis_client.memory import RedisMemory

log = logging.getLogger(__name__)

FAILURE_CODES: Final = tuple(
    error.code
    for error in (
        DeviceError,
        InputUnavailable,
        InvalidInput,
        InvalidRequest,
        JobExpired,
        MessageRejected,
        NewerMessage,
        StorageDenied,
        StorageUnavailable,
        TooManyDeliveries,
        WorkerError,
    )
)
"""The codes with which a job may fail. docs/client.md explains them."""
_ENDS: Final = (State.SUCCEEDED, State.CANCELLED, *(f"{State.FAILED}:{c}" for c in FAILURE_CODES))
"""The ends that are exported before there was one, so that `increase` counts the first."""


class FleetCollector(Collector):
    """Collects the status of one fleet."""

    def __init__(self, read: Callable[[], FleetSnapshot], declared: Collection[str] = ()) -> None:
        """
        Args:
            read: returns the snapshot now, or raises BrokerUnavailable.
            declared: models of workers that have not announced them yet.
        """
        self._read = read
        self._declared = declared

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: otherwise the registry would collect, and so read Redis, at once."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read Redis and yield the metrics; only `imagefleet_redis_up` if it does not answer. In a
        cluster it is 0 beside the others while a lane does not answer. Before such a lane was ever
        read, the counters are missing: they would rise later by what it counts."""
        up = GaugeMetricFamily(
            "imagefleet_redis_up", "1 if Redis, all of it, answered this scrape, else 0."
        )
        try:
            snapshot = self._read()
        except BrokerUnavailable as error:
            log.warning("%s", error)
            up.add_metric([], 0)
            yield up
            return
        status = snapshot.status
        up.add_metric([], 0 if status.lanes_down else 1)
        yield up
        yield _lanes(snapshot)
        if status.lanes_unknown:
            log.warning("lanes that have not answered yet: %s", status.lanes_unknown)
            return
        models = OfferedModels(status.workers, snapshot.offers, self._declared)
        yield from _queue_metrics(status.queues, models)
        yield from _worker_metrics(status, models)
        yield _job_ends(status)
        yield _host_failures(status)
        yield _callbacks(status)
        yield _in_flight(status)
        yield from _numbers(snapshot)
        if snapshot.memory is not None:
            yield _redis_memory(snapshot.memory)


def _lanes(snapshot: FleetSnapshot) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "imagefleet_lane_up",
        "1 if this lane of a cluster answered this scrape, else 0.",
        labels=["lane"],
    )
    for number in range(snapshot.lanes) if snapshot.lanes > 1 else ():
        family.add_metric([str(number)], 0 if number in snapshot.status.lanes_down else 1)
    return family


def _queue_metrics(
    queues: Iterable[QueueStatus], models: OfferedModels
) -> Iterator[GaugeMetricFamily]:
    waiting: Counter[QueueLabels] = Counter(dict.fromkeys(models.always_exported(), 0))
    oldest: dict[QueueLabels, float] = {}
    for queue in queues:
        labels = models.labels(queue)
        waiting[labels] += queue.waiting
        if queue.oldest_s is not None:
            oldest[labels] = max(queue.oldest_s, oldest.get(labels, 0.0))
    yield _by_queue(
        "imagefleet_queue_messages", "Messages that no worker has claimed.", waiting.items()
    )
    yield _by_queue(
        "imagefleet_queue_oldest_seconds",
        "Time since the submission of the oldest job at the head of a queue.",
        oldest.items(),
    )


def _by_queue(
    name: str, text: str, values: Iterable[tuple[QueueLabels, float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=QueueLabels._fields)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _worker_metrics(status: FleetStatus, models: OfferedModels) -> Iterator[GaugeMetricFamily]:
    by_state = GaugeMetricFamily("imagefleet_workers", "Workers by state.", labels=["state"])
    states = Counter(worker.state for worker in status.workers)
    for state in WorkerState:
        by_state.add_metric([state], states[state])
    yield by_state
    ready = GaugeMetricFamily(
        "imagefleet_ready_workers", "Workers that take work, by model.", labels=["model"]
    )
    for model, number in models.ready_workers():
        ready.add_metric([model], number)
    yield ready
    differing = GaugeMetricFamily(
        "imagefleet_differing_workers",
        "Workers that differ from most others and may not, by what differs.",
        labels=["what"],
    )
    differences = Counter(each.trait for each in status.differences if not each.allowed)
    for trait in Trait:
        differing.add_metric([trait], differences[trait])
    yield differing


def _job_ends(status: FleetStatus) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "imagefleet_job_ends", "Jobs that ended, by state and code.", labels=["state", "code"]
    )
    for name, count in {**dict.fromkeys(_ENDS, 0), **status.job_ends}.items():
        ended, _, code = name.partition(":")
        family.add_metric([ended, code], count)
    return family


def _host_failures(status: FleetStatus) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "imagefleet_host_failures",
        "Attempts at jobs that failed in the last hour, by host and code.",
        labels=["host", "code"],
    )
    for host, codes in status.failures.items():
        for code, count in codes.items():
            family.add_metric([host, code], count)
    return family


def _callbacks(status: FleetStatus) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "imagefleet_callbacks", "Callbacks that wait or were given up.", labels=["state"]
    )
    family.add_metric(["waiting"], status.callbacks)
    family.add_metric(["given_up"], status.callbacks_given_up)
    return family


def _in_flight(status: FleetStatus) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "imagefleet_in_flight", "Messages that workers hold.", labels=["work"]
    )
    family.add_metric(["jobs"], status.in_flight - status.in_flight_shards)
    family.add_metric(["rows"], status.in_flight_shards)
    return family


def _numbers(snapshot: FleetSnapshot) -> Iterator[Metric]:
    status = snapshot.status
    yield CounterMetricFamily(
        "imagefleet_dead_letters_dropped",
        "Dead letters that were dropped for newer ones.",
        value=status.dead_letters_dropped,
    )
    for name, text, value in (
        ("delayed", "Messages that return to their queue later.", status.delayed),
        ("dead_letters", "Messages that the fleet gave up and keeps.", status.dead_letters),
        (
            "dataset_idle_seconds",
            "Longest time for which nothing has changed in a running dataset; 0 if none runs.",
            snapshot.dataset_idle_s,
        ),
    ):
        yield GaugeMetricFamily(f"imagefleet_{name}", text, value=value)


def _redis_memory(memory: RedisMemory) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "imagefleet_redis_memory_bytes", "Memory of Redis: used, and the limit.", labels=["of"]
    )
    family.add_metric(["used"], memory.used)
    if memory.limit is not None:
        family.add_metric(["limit"], memory.limit)
    return family
