"""Check that a cluster can hold a fleet: the servers of its lanes, and their number.

Every process must cut the fleet into the same number of lanes, or ids would tell it other lanes. So
workers store the number in each lane, and every process compares its own with one of them.
"""

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.redis_client.connection import translate_errors
from imagefleet.shared.redis_client.each_lane import ask_at_once
from imagefleet.shared.redis_client.server_check import check_server

if TYPE_CHECKING:
    from imagefleet.shared.redis_client.lanes import Lane, Lanes

_NUMBER: Final = ":lanes"
"""A fleet on one server has no such key."""
_CHECK_S: Final = 60.0
"""Seconds that all servers together have for an answer."""


def number_key(namespace: str) -> str:
    """Return the key of the number of lanes, in the lane of this namespace."""
    return namespace + _NUMBER


def check_cluster(lanes: "Lanes", url: str, namespace: str) -> list[str]:
    """Return warnings about the cluster of a worker. It stores the number of lanes, if none is.

    A lane that does not answer is no fault: its jobs wait, and the others go on.

    Raises:
        ConfigurationError: the fleet has another number of lanes, or a server cannot hold a lane.
        BrokerUnavailable: the first lane does not answer, and no other has the number.
    """
    if not check_number(lanes, url, namespace):
        with translate_errors(url):
            lanes.first.client.set(number_key(lanes.first.namespace), len(lanes), nx=True)
        check_number(lanes, url, namespace)  # another worker may have stored its own first
    asks = {lane.number: partial(_check_lane, lane, url) for lane in lanes}
    answers = ask_at_once(asks, len(lanes), _CHECK_S, "its jobs wait")
    warnings: list[str] = []
    for answer in answers.values():
        if isinstance(answer, ConfigurationError):
            raise answer
        warnings += [each for each in answer if each not in warnings]
    return warnings


def _check_lane(lane: "Lane", url: str) -> list[str] | ConfigurationError:
    """Return warnings, or why the server of a lane cannot hold it."""
    lane.client.ping()  # its error is that of the server; `check_server` translates it
    try:
        return check_server(lane.client, url, lane.namespace, runs_celery=False, in_lane=True)
    except ConfigurationError as error:
        return error


def check_number(lanes: "Lanes", url: str, namespace: str) -> bool:
    """Compare the number of lanes with that of the fleet, and return whether it has one. A fleet
    that never had a worker has none yet.

    Raises:
        ConfigurationError: it is another one.
        BrokerUnavailable: the first lane does not answer, and no other has the number.
    """
    stored = _stored_number(lanes, url)
    if stored is not None and stored != str(len(lanes)):
        raise ConfigurationError(
            f"IMAGEFLEET_LANES={len(lanes)}, and the fleet {namespace} was made with {stored} "
            f"lanes; set it to {stored}"
        )
    return stored is not None


def _stored_number(lanes: "Lanes", url: str) -> str | None:
    """Return what the first lane has, or the first of the others if it does not answer."""
    import redis

    first, *others = (partial(lane.client.get, number_key(lane.namespace)) for lane in lanes)
    with translate_errors(url):
        try:
            return cast(str | None, first())
        except redis.AuthenticationError:
            raise  # it is that of all servers
        except redis.RedisError:
            for read in others:
                with suppress(redis.RedisError):
                    if (stored := cast(str | None, read())) is not None:
                        return stored
            raise
