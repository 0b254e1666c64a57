"""Count the requests of each API key over a moving minute, for all gateways together.

`limits` keeps the times of the latest requests of a key in one list in Redis, in the lane that the
id of the key tells. The times are those of the gateways, so their clocks should agree to a second.
"""

import time
from typing import Final

from limits import RateLimitItemPerMinute
from limits.storage import RedisStorage
from limits.strategies import MovingWindowRateLimiter

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.redis_keys import rates_prefix
from imagefleet.shared.redis_client.lanes import Lane

_LEAST_WAIT_S: Final = 0.001
"""A refused caller waits at least this long, also if the window moved on meanwhile."""


class RequestRates:
    """This class bounds the requests of keys in any 60 seconds. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._limiters = [_limiter(lane) for lane in connection.lanes]

    def take(self, caller: Caller) -> float:
        """Count one request of `caller`. Return 0 if it is allowed, else the seconds until one is.

        A refused request does not count.

        Raises:
            BrokerUnavailable: Redis does not answer, takes no writes, or refuses this user.
        """
        if caller.key_id is None or caller.per_minute is None:
            return 0.0
        limit = RateLimitItemPerMinute(caller.per_minute, namespace="requests")
        limiter = self._limiters[self._connection.lanes.of(caller.key_id).number]
        with self._connection.translate_errors():
            if limiter.hit(limit, caller.key_id):
                return 0.0
            reset_at = limiter.get_window_stats(limit, caller.key_id).reset_time
        return max(_LEAST_WAIT_S, reset_at - time.time())


def _limiter(lane: Lane) -> MovingWindowRateLimiter:
    # The address is not used: the pool has it, with its password, TLS or Sentinels.
    storage = RedisStorage(
        "redis://",
        connection_pool=lane.client.connection_pool,
        key_prefix=rates_prefix(lane.namespace),
    )
    return MovingWindowRateLimiter(storage)
