"""Prometheus metrics of what only Redis knows: queues, workers, dead letters and callbacks.

One exporter per namespace is enough. It reads Redis at each scrape.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.fleet_status import FleetStatus, QueueStatus
from imagefleet.shared.jobs.worker_status import WorkerState

log = logging.getLogger(__name__)

MAX_QUEUES: Final = 100
"""Queues with labels of their own, those with the most messages. The others are summed up, since
producers choose the names."""
_OTHER: Final = "other"


class FleetCollector(Collector):
    """Collects the status of one fleet."""

    def __init__(self, read: Callable[[], FleetStatus]) -> None:
        """
        Args:
            read: returns the status now, or raises BrokerUnavailable.
        """
        self._read = read

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Describe nothing: otherwise the registry would collect, and so read Redis, at once."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
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
        yield from _queue_metrics(status.queues)
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
        for name, text, value in (
            ("in_hand", "Messages that workers hold.", status.in_hand),
            ("delayed", "Messages that return to their queue later.", status.delayed),
            ("dead_letters", "Messages that the fleet gave up.", status.dead_letters),
        ):
            yield GaugeMetricFamily(f"imagefleet_{name}", text, value=value)


def _queue_metrics(queues: Iterable[QueueStatus]) -> Iterator[GaugeMetricFamily]:
    labels = ["model", "shape", "work"]
    waiting = GaugeMetricFamily(
        "imagefleet_queue_messages", "Messages that no worker has claimed.", labels=labels
    )
    oldest = GaugeMetricFamily(
        "imagefleet_queue_oldest_seconds",
        "Time since the submission of the oldest job at the head of a queue.",
        labels=labels,
    )
    ranked = sorted(queues, key=lambda queue: queue.waiting, reverse=True)
    for queue in ranked[:MAX_QUEUES]:
        values = [queue.model, queue.shape, "rows" if queue.datasets else "jobs"]
        waiting.add_metric(values, queue.waiting)
        if queue.oldest_s is not None:
            oldest.add_metric(values, queue.oldest_s)
    if rest := ranked[MAX_QUEUES:]:
        waiting.add_metric([_OTHER, _OTHER, _OTHER], sum(queue.waiting for queue in rest))
    yield waiting
    yield oldest
