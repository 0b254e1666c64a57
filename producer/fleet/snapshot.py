"""Read everything that the exporter exports of one fleet. Redis errors come out translated."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.fleet_status import FleetStatus
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.redis_client.memory import RedisMemory


@dataclass(frozen=True, kw_only=True)
class FleetSnapshot:
    """What Redis knows of a fleet at one scrape. Its parts are read one after the other."""

    status: FleetStatus
    offers: Mapping[str, Offer] = field(default_factory=dict)
    """What workers offer, or have offered within `forget_models_s`, by model."""
    memory: RedisMemory | None = None
    """None: Redis does not say."""
    dataset_idle_s: float = 0.0
    """The longest time for which nothing has changed in a running dataset."""


def read_snapshot(connection: Connection) -> FleetSnapshot:
    """Return the snapshot now.

    Raises:
        BrokerUnavailable: Redis does not answer.
    """
    status = connection.read_fleet()
    offers: Mapping[str, Offer] = {}
    with suppress(BrokerUnavailable):  # a damaged key costs the names of models, not the page
        offers = connection.offers()
    with connection.runs() as runs:
        dataset_idle_s = runs.stalled.longest_idle_s()
    return FleetSnapshot(
        status=status,
        offers=offers,
        memory=connection.read_memory(),
        dataset_idle_s=dataset_idle_s,
    )
