"""Whose jobs wait, how much of the fleet each tenant may have, and how many jobs may wait.

Kept in Redis, so that one command changes it for every worker and producer at once.
"""

from typing import TYPE_CHECKING, Final, cast

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.model import Model
from imagefleet.shared.jobs.queues import PRIORITY_STEPS, known_queues_key, list_key, tenant_of

if TYPE_CHECKING:
    from redis import Redis

ALL_TENANTS: Final = "*"
"""Stands for all tenants together where a limit is set; no tenant can be called so."""
NO_TENANT: Final = ""
"""Jobs that name no tenant."""


class TenantStatus(Model):
    """One tenant's, or with the name `*` everybody's."""

    tenant: str
    waiting: int
    """Jobs in its queues."""
    weight: float = 1.0
    """Pictures it gets for each one of a tenant with weight 1, while both wait."""
    limit: int | None = None
    """Jobs that may wait; None: as many as Redis can hold."""


def weights_key(namespace: str) -> str:
    return f"{namespace}:weights"


def limits_key(namespace: str) -> str:
    return f"{namespace}:limits"


class Tenants:
    """The tenants of one namespace."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._queues = known_queues_key(namespace)
        self._weights = weights_key(namespace)
        self._limits = limits_key(namespace)

    def set_weight(self, tenant: str, weight: float) -> None:
        """From the next claim on. Raises InvalidRequest unless `weight` is more than 0."""
        if not 0 < weight <= 1_000_000:
            raise InvalidRequest("weight", weight, "must be more than 0 and at most 1000000")
        self._redis.hset(self._weights, tenant, str(weight))

    def limit(self, tenant: str, jobs: int | None) -> None:
        """How many jobs of `tenant` may wait, or of all together (`*`); None: no limit."""
        if jobs is None:
            self._redis.hdel(self._limits, tenant)
        elif jobs < 0:
            raise InvalidRequest("limit", jobs, "must be 0 or more")
        else:
            self._redis.hset(self._limits, tenant, jobs)

    def statuses(self) -> list[TenantStatus]:
        """Everybody first, then each tenant that waits, weighs or is limited, by name."""
        weights = cast(dict[str, str], self._redis.hgetall(self._weights))
        limits = cast(dict[str, str], self._redis.hgetall(self._limits))
        waiting = self._waiting()
        waiting[ALL_TENANTS] = sum(waiting.values())
        return [
            TenantStatus(
                tenant=tenant,
                waiting=waiting.get(tenant, 0),
                weight=float(weights.get(tenant, 1)),
                limit=int(limits[tenant]) if tenant in limits else None,
            )
            for tenant in sorted({*waiting, *weights, *limits})
        ]

    def _waiting(self) -> dict[str, int]:
        queues = sorted(cast(set[str], self._redis.smembers(self._queues)))
        with self._redis.pipeline(transaction=False) as pipe:
            for queue in queues:
                for level in PRIORITY_STEPS:
                    pipe.llen(list_key(queue, level))
            lengths = iter(cast(list[int], pipe.execute()))
        waiting: dict[str, int] = {}
        for queue in queues:
            tenant = tenant_of(queue) or NO_TENANT
            count = sum(next(lengths) for _ in PRIORITY_STEPS)
            waiting[tenant] = waiting.get(tenant, 0) + count
        return waiting
