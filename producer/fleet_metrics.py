"""Prometheus metrics of what only Redis knows: queues, workers, dead letters and callbacks.

One exporter per namespace is enough. It reads Redis at each scrape.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.fleet_status import FleetStatus
from imagefleet.shared.jobs.queues import DEFAULT_MODEL, NATIVE_SHAPE
from imagefleet.shared.jobs.worker_status import WorkerState

log = logging.getLogger(__name__)

_OTHER: Final = "other"
"""Label of the queues of models and shapes that no worker serves. Producers choose such names."""


_WORK: Final = ["work"]


class FleetCollector(Collector):
    """Collects the status of one fleet."""

    def __init__(self, read: Callable[[], FleetStatus]) -> None:
        """
        Args:
            read: returns the status now, or raises BrokerUnavailable.
        """
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: otherwise the registry would collect, and so read Redis, at once."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read Redis and yield the metrics; only `imagefleet_redis_up` if it does not answer."""
        up = GaugeMetricFamily("imagefleet_redis_up", "1 if Redis answered this scrape, else 0.")
        try:
            status = self._read()
        except BrokerUnavailable as error:
            log.warning("%s", error)
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from _queue_metrics(status)
        workers = GaugeMetricFamily("imagefleet_workers", "Workers by state.", labels=["state"])
        states = Counter(worker.state for worker in status.workers)
        for state in WorkerState:
            workers.add_metric([state], states[state])
        yield workers
        callbacks = GaugeMetricFamily(
            "imagefleet_callbacks", "Callbacks that wait or were given up.", labels=["state"]
        )
        callbacks.add_metric(["waiting"], status.callbacks)
        callbacks.add_metric(["given_up"], status.callbacks_given_up)
        yield callbacks
        ends = CounterMetricFamily(
            "imagefleet_job_ends", "Jobs that ended, by state and code.", labels=["state", "code"]
        )
        for name, count in status.job_ends.items():
            ended, _, code = name.partition(":")
            ends.add_metric([ended, code], count)
        yield ends
        yield _in_flight(status)
        yield CounterMetricFamily(
            "imagefleet_dead_letters_dropped",
            "Dead letters that were dropped for newer ones.",
            value=status.dead_letters_dropped,
        )
        for name, text, value in (
            ("delayed", "Messages that return to their queue later.", status.delayed),
            ("dead_letters", "Messages that the fleet gave up and keeps.", status.dead_letters),
        ):
            yield GaugeMetricFamily(f"imagefleet_{name}", text, value=value)


def _in_flight(status: FleetStatus) -> GaugeMetricFamily:
    family = GaugeMetricFamily("imagefleet_in_flight", "Messages that workers hold.", labels=_WORK)
    family.add_metric(["jobs"], status.in_flight - status.in_flight_shards)
    family.add_metric(["rows"], status.in_flight_shards)
    return family


def _queue_metrics(status: FleetStatus) -> Iterator[GaugeMetricFamily]:
    models = {DEFAULT_MODEL, *(worker.model for worker in status.workers)}
    shapes = {NATIVE_SHAPE, *(shape for worker in status.workers for shape in worker.shapes)}
    labels = ["model", "shape", *_WORK]
    waiting = GaugeMetricFamily(
        "imagefleet_queue_messages", "Messages that no worker has claimed.", labels=labels
    )
    oldest = GaugeMetricFamily(
        "imagefleet_queue_oldest_seconds",
        "Time since the submission of the oldest job at the head of a queue.",
        labels=labels,
    )
    rest = 0
    rest_ages: list[float] = []
    for queue in status.queues:
        if not (queue.model in models and queue.shape in shapes):
            rest += queue.waiting
            rest_ages += [] if queue.oldest_s is None else [queue.oldest_s]
            continue
        values = [queue.model, queue.shape, "rows" if queue.datasets else "jobs"]
        waiting.add_metric(values, queue.waiting)
        if queue.oldest_s is not None:
            oldest.add_metric(values, queue.oldest_s)
    waiting.add_metric([_OTHER, _OTHER, _OTHER], rest)
    if rest_ages:
        oldest.add_metric([_OTHER, _OTHER, _OTHER], max(rest_ages))
    yield waiting
    yield oldest
