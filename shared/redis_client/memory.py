"""Read how much memory a Redis uses, and how much it may use.

Input: a client. Output: the memory, or None if a Redis does not answer, as managed ones may.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from imagefleet.shared.redis_client.each_lane import ask_at_once

if TYPE_CHECKING:
    from redis import Redis

    from imagefleet.shared.redis_client.lanes import Lanes

ALMOST_FULL: Final = 0.8
"""The share from which operators are warned."""
_MIB: Final = 2**20


class RedisMemory(NamedTuple):
    """The memory of a Redis server in bytes."""

    used: int
    limit: int | None
    """`maxmemory`; if that is not set, the memory of its machine. None: Redis does not say."""
    is_bounded: bool
    """Whether `maxmemory` is set. Otherwise the system ends a Redis that is too large."""

    @property
    def share(self) -> float:
        """The share of the limit that is used; 0 if Redis does not say what it is."""
        return self.used / self.limit if self.limit else 0.0

    @property
    def is_almost_full(self) -> bool:
        return self.share > ALMOST_FULL

    def __str__(self) -> str:
        used = f"{self.used / _MIB:,.0f} MiB"
        if self.limit is None:
            return f"{used} of memory used, without maxmemory"
        limit = f"{self.limit / _MIB:,.0f} MiB"
        if self.is_bounded:
            return f"{used} of maxmemory {limit} used"
        return f"{used} of the machine's {limit} used, without maxmemory"


def read_fullest_memory(lanes: "Lanes", within_s: float) -> RedisMemory | None:
    """Return the memory of the server that is fullest, of those of the lanes that answer in time.
    The only lane is waited for."""
    asks = {lane.number: partial(read_memory, lane.client) for lane in lanes}
    answers = ask_at_once(asks, len(lanes), within_s, "its memory is not known")
    found = filter(None, answers.values())
    return max(found, key=lambda memory: (memory.share, memory.used), default=None)


def read_memory(client: "Redis") -> RedisMemory | None:
    """Return the memory of Redis; None if this user may not ask."""
    import redis

    try:
        info: dict[str, Any] = client.info("memory")
    except redis.ResponseError:
        return None
    if "used_memory" not in info:
        return None
    maxmemory = int(info.get("maxmemory") or 0)
    limit = maxmemory or int(info.get("total_system_memory") or 0) or None
    return RedisMemory(used=int(info["used_memory"]), limit=limit, is_bounded=bool(maxmemory))
