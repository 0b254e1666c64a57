"""Add the label `fleet` to every metric, so that one Prometheus can watch several fleets.

Input: a collector. Output: another collector. It needs prometheus-client, which not every producer
has.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

LABEL: Final = "fleet"
"""Its value is the namespace."""


class FleetLabel(Collector):
    """Collects what another collector collects, and names the fleet in each sample."""

    def __init__(self, collector: Collector, namespace: str) -> None:
        self._collector = collector
        self._label: Final = {LABEL: namespace}

    def describe(self) -> Iterable[Metric]:
        """Return what the other collector says of itself; without it, what it collects now."""
        describe = getattr(self._collector, "describe", self._collector.collect)
        described: Iterable[Metric] = describe()
        return described

    def collect(self) -> Iterator[Metric]:
        for family in self._collector.collect():
            labelled = copy(family)
            labelled.samples = [
                sample._replace(labels={**self._label, **sample.labels})
                for sample in family.samples
            ]
            yield labelled


def labelled_registry(collector: Collector, namespace: str) -> CollectorRegistry:
    """Return a registry that holds the collector, with the label."""
    registry = CollectorRegistry()
    registry.register(FleetLabel(collector, namespace))
    return registry
