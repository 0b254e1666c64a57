"""Set the weights of tenants and the limits of their waiting jobs, and count those jobs.

All of it is in Redis, so one command changes it for every worker and producer at once.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.arguments import check_whole_number
from imagefleet.shared.jobs.model import Model, check_name, parse_count
from imagefleet.shared.jobs.queues import PRIORITY_STEPS, list_key, tenant_of
from imagefleet.shared.jobs.redis_keys import known_queues_key, limits_key, weights_key
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types
from imagefleet.shared.text.printable import printable

log = logging.getLogger(__name__)

T = TypeVar("T")

ALL_TENANTS: Final = "*"
"""Means all tenants together where a limit is set. No tenant can have this name."""
NO_TENANT: Final = ""
"""Means the jobs that name no tenant."""
_MIN_WEIGHT: Final = 1e-6
_MAX_WEIGHT: Final = 1_000_000
"""`claim.lua` has the same limits."""


class TenantStatus(Model):
    """The status describes one tenant, or all together if its name is `*`."""

    tenant: str
    waiting: int
    """It counts the jobs in the tenant's queues."""
    weight: float = 1.0
    """Images the tenant gets for each image of a tenant with weight 1, while both wait."""
    limit: int | None = None
    """Jobs that may wait. None: no limit."""


class Tenants:
    """This class reads and changes the tenants of a fleet.

    Each lane has a copy of their weights and limits, for the scripts that run there.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def set_weight(self, tenant: str, weight: float) -> None:
        """Set a tenant's weight, from the next claim on.

        Raises:
            InvalidRequest: `weight` is less than 0.000001 or more than 1,000,000, or no tenant can
                have this name.
        """
        _check_tenant(tenant)
        if not _MIN_WEIGHT <= weight <= _MAX_WEIGHT:
            limit = f"must be at least {_MIN_WEIGHT:f} and at most {_MAX_WEIGHT:,}"
            raise InvalidRequest("weight", weight, limit)
        self._write(lambda lane: lane.client.hset(weights_key(lane.namespace), tenant, str(weight)))

    def set_limit(self, tenant: str, jobs: int | None) -> None:
        """Set how many jobs of `tenant`, or of all together (`*`), may wait. None: no limit.

        Raises:
            InvalidRequest: `jobs` is no whole number or negative, or no tenant can have this name.
        """
        if jobs is not None:
            _check_tenant(tenant)
            check_whole_number("limit", jobs, 0)

        def write(lane: Lane) -> object:
            if jobs is None:
                return lane.client.hdel(limits_key(lane.namespace), tenant)
            return lane.client.hset(limits_key(lane.namespace), tenant, jobs)

        self._write(write)

    def _write(self, write: Callable[[Lane], object]) -> None:
        """Write to all lanes that answer. Raises the error of one that does not: the call can be
        repeated."""
        import redis

        failure: redis.RedisError | None = None
        for lane in self._lanes:
            try:
                write(lane)
            except redis.RedisError as error:
                failure = error
        if failure is not None:
            raise failure

    def statuses(self) -> list[TenantStatus]:
        """Return `*` first, then each tenant with waiting jobs, a weight or a limit, by name."""
        tables, waiting = [], Counter[str]()
        for lane in self._lanes:
            with lane.client.pipeline(transaction=False) as pipe:
                pipe.hgetall(weights_key(lane.namespace))
                pipe.hgetall(limits_key(lane.namespace))
                pipe.smembers(known_queues_key(lane.namespace))
                *tables_here, queues = read_ignoring_wrong_types(pipe)
            tables.append(tables_here)
            waiting.update(_count_waiting(lane, sorted(queues or ())))
        texts, limit_texts = tables[0]  # all lanes have the same
        weights = _parse_each("weight", texts or {}, _parse_weight)
        limits = _parse_each("limit", limit_texts or {}, parse_count)
        waiting[ALL_TENANTS] = sum(waiting.values())
        return [
            TenantStatus(
                tenant=tenant,
                waiting=waiting[tenant],
                weight=weights.get(tenant, 1.0),
                limit=limits.get(tenant),
            )
            for tenant in sorted({*waiting, *weights, *limits})
        ]


def _count_waiting(lane: Lane, queues: Sequence[str]) -> dict[str, int]:
    """Return the jobs of each tenant in the queues of one lane."""
    with lane.client.pipeline(transaction=False) as pipe:
        for queue in queues:
            for level in PRIORITY_STEPS:
                pipe.llen(list_key(queue, level))
        lengths = iter(read_ignoring_wrong_types(pipe))
    waiting: dict[str, int] = {}
    for queue in queues:
        tenant = tenant_of(queue) or NO_TENANT
        count = sum(next(lengths) or 0 for _ in PRIORITY_STEPS)
        waiting[tenant] = waiting.get(tenant, 0) + count
    return waiting


def _parse_weight(text: str) -> float | None:
    """Return a weight that a claim uses as it is; None if it is damaged."""
    try:
        weight = float(text)
    except ValueError:
        return None
    return weight if _MIN_WEIGHT <= weight <= _MAX_WEIGHT else None


def _parse_each(
    what: str, texts: Mapping[str, str], parse: Callable[[str], T | None]
) -> dict[str, T]:
    """Return the values by tenant, without those that are damaged, which are named in warnings."""
    parsed = {tenant: parse(text) for tenant, text in texts.items()}
    for tenant in [name for name, value in parsed.items() if value is None]:
        log.warning("the %s of tenant %s in Redis is damaged and ignored", what, printable(tenant))
    return {tenant: value for tenant, value in parsed.items() if value is not None}


def _check_tenant(tenant: str) -> None:
    """Raise InvalidRequest unless a tenant can have this name, or it is `*` or empty."""
    if tenant not in (ALL_TENANTS, NO_TENANT):
        try:
            check_name(tenant)
        except ValueError as error:
            raise InvalidRequest("tenant", tenant, str(error)) from None
