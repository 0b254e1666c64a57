"""Check that a cluster can hold a fleet: the servers of its lanes, and their number.

Every process must cut the fleet into the same number of lanes, or ids would tell it other lanes. So
the first worker stores the number in lane 0, and all others compare theirs with it.
"""

from typing import TYPE_CHECKING, Final, cast

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.redis_client.connection import translate_errors
from imagefleet.shared.redis_client.server_check import check_server

if TYPE_CHECKING:
    from imagefleet.shared.redis_client.lanes import Lanes

_NUMBER: Final = ":lanes"


def check_cluster(lanes: "Lanes", url: str, namespace: str) -> list[str]:
    """Return warnings about the cluster of a worker. It stores the number of lanes, if none is.

    A lane that does not answer is no fault, unless it is the first: its jobs wait, and the others
    go on.

    Raises:
        ConfigurationError: the fleet has another number of lanes, or a server cannot hold a lane.
        BrokerUnavailable: the first lane does not answer.
    """
    import redis

    if not check_number(lanes, url, namespace):
        with translate_errors(url):
            lanes.first.client.set(lanes.first.namespace + _NUMBER, len(lanes), nx=True)
        check_number(lanes, url, namespace)  # another worker may have stored its own first
    warnings = []
    for lane in lanes:
        try:
            lane.client.ping()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            warnings.append(f"lane {lane.number} does not answer, and its jobs wait: {error}")
            continue
        found = check_server(lane.client, url, lane.namespace, runs_celery=False, in_lane=True)
        warnings += [each for each in found if each not in warnings]
    return warnings


def check_number(lanes: "Lanes", url: str, namespace: str) -> bool:
    """Compare the number of lanes with that of the fleet, and return whether it has one. A fleet
    that never had a worker has none yet.

    Raises:
        ConfigurationError: it is another one.
        BrokerUnavailable: the first lane does not answer.
    """
    with translate_errors(url):
        stored = cast(str | None, lanes.first.client.get(lanes.first.namespace + _NUMBER))
    if stored is not None and stored != str(len(lanes)):
        raise ConfigurationError(
            f"IMAGEFLEET_LANES={len(lanes)}, and the fleet {namespace} was made with {stored} "
            f"lanes; set it to {stored}"
        )
    return stored is not None
