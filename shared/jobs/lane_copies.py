"""Restore what each lane stores for the whole fleet, if its server has lost it.

Each lane has a copy of the weights and limits of tenants, and of the number of lanes. Without them
a server that was emptied would ignore the weights, and accept more jobs than the limits allow.
"""

import logging
from typing import Any

from imagefleet.shared.jobs.redis_keys import limits_key, weights_key
from imagefleet.shared.redis_client.cluster_check import number_key
from imagefleet.shared.redis_client.lanes import Lanes

log = logging.getLogger(__name__)


def restore_copies(lanes: Lanes, number: int) -> None:
    """Copy to a lane what another has, if it has no number of lanes: it is new, or was emptied. Log
    an error of Redis: the next call tries again."""
    import redis

    lane, source = lanes[number], lanes[0 if number else -1]
    try:
        if lane is source or lane.client.exists(number_key(lane.namespace)):
            return
        for key in (weights_key, limits_key):
            copied: Any = source.client.hgetall(key(source.namespace))
            if copied:
                lane.client.hset(key(lane.namespace), mapping=copied)
        lane.client.set(number_key(lane.namespace), len(lanes), nx=True)
    except redis.RedisError as error:
        log.warning("weights and limits of tenants are not restored in lane %d: %s", number, error)
