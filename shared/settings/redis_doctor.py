"""Check Redis for both commands `doctor`: one server, or each server of a cluster.

Input: the settings of a producer or worker. Output: findings. It writes and deletes a few keys.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from imagefleet.shared.errors import BrokerUnavailable, ConfigurationError
from imagefleet.shared.redis_client.cluster_check import check_number
from imagefleet.shared.redis_client.connection import (
    check_connection,
    cluster_map,
    connect,
    connect_lanes,
    server_of,
    translate_errors,
)
from imagefleet.shared.redis_client.lanes import SLOTS, Lane, Lanes
from imagefleet.shared.redis_client.memory import read_memory
from imagefleet.shared.redis_client.server_check import check_server, is_replica
from imagefleet.shared.settings.doctor import Finding, Verdict
from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.text.printable import counted

if TYPE_CHECKING:
    from redis import Redis

    from imagefleet.shared.redis_client.cluster_map import Master

_PINGS: Final = 20
_MAX_CLOCK_DIFFERENCE_S: Final = 2.0
_ANSWER_S: Final = 3.0
"""A server of a cluster that does not answer a command within this time is down."""


def check_redis(settings: Settings, *, runs_celery: bool) -> Iterator[Finding]:
    """Check Redis: its settings, its memory, the rights of this user, its speed and its clock; of a
    cluster those of each master, and the lanes.

    Args:
        runs_celery: Whether this is a worker, which calls what Celery calls too.

    Raises:
        BrokerUnavailable: Redis does not answer.
        ConfigurationError: Redis would lose jobs, or this user lacks rights.
    """
    url = settings.redis_url.get_secret_value()
    if settings.in_cluster:
        yield from _check_cluster(settings, url)
        return
    with connect(url) as client, translate_errors(url):
        check_connection(client, url)
        warnings = check_server(client, url, settings.namespace, runs_celery=runs_celery)
        for warning in warnings:
            yield Finding(Verdict.WARNING, warning)
        if is_replica(client):
            text = (
                f"Redis at {server_of(url)} is a read-only replica, which takes no jobs; use the "
                "address of its master, or sentinel://"
            )
            yield Finding(Verdict.FAILURE, text)
        yield from _describe(client, server_of(url))


def _check_cluster(settings: Settings, url: str) -> Iterator[Finding]:
    """Check each master, the lanes that it has, and its replicas."""
    masters_of = cluster_map(url, answer_within_s=_ANSWER_S)
    with translate_errors(url):
        masters = masters_of.masters()
    connected = connect_lanes(
        url, settings.namespace, lanes=settings.lanes, answer_within_s=_ANSWER_S
    )
    with closing(connected) as lanes:
        yield from _check_slots(masters, lanes)
        for master in masters:
            yield from _check_master(master, [lane for lane in lanes if _is_in(lane, master.slots)])
        try:
            check_number(lanes, url, settings.namespace)
        except BrokerUnavailable:
            pass  # the check of its master has said so
        except ConfigurationError as error:
            yield Finding(Verdict.FAILURE, str(error))


def _check_slots(masters: Sequence["Master"], lanes: Lanes) -> Iterator[Finding]:
    served = frozenset[int]().union(*(master.slots for master in masters))
    replicas = sum(len(master.replicas) for master in masters)
    text = (
        f"{counted(len(masters), 'master')} with {counted(replicas, 'replica')}, "
        f"{counted(len(lanes), 'lane')}, and a master for {len(served):,} of {SLOTS:,} slots"
    )
    without = [lane for lane in lanes if not _is_in(lane, served)]
    if without:
        text += f", none for {_names(without)}: their jobs wait; give the slots to a master"
        yield Finding(Verdict.FAILURE, text)
    elif len(served) < SLOTS:
        yield Finding(Verdict.WARNING, f"{text}; no lane is in the others")
    else:
        yield Finding(Verdict.OK, text)


def _check_master(master: "Master", lanes: Sequence[Lane]) -> Iterator[Finding]:
    """Check one master with the lanes that it has, through the clients of these lanes."""
    import redis

    try:
        with translate_errors(master.address):
            master.client.ping()
    except BrokerUnavailable as error:
        what = "wait" if len(lanes) > 1 else "waits"
        text = f"{_names(lanes)} {what} until a replica takes over, or its master is back: {error}"
        yield Finding(Verdict.FAILURE, text)
        return
    here = f"{master.address} ({_names(lanes)}; {counted(len(master.replicas), 'replica')})"
    try:
        yield from _check_lanes(master, lanes)
        yield from _check_failover(master)
        yield from _describe(master.client, here)
    except redis.RedisError as error:
        yield Finding(Verdict.FAILURE, f"{here}: {error}")
    for address, replica in master.replicas.items():
        yield from _check_replica(replica, f"{address}, a replica of {master.address}")


def _check_lanes(master: "Master", lanes: Sequence[Lane]) -> Iterator[Finding]:
    warnings: list[str] = []
    for lane in lanes:
        try:
            warnings += check_server(
                lane.client, master.address, lane.namespace, runs_celery=False, in_lane=True
            )
        except (BrokerUnavailable, ConfigurationError) as error:
            yield Finding(Verdict.FAILURE, f"lane {lane.number}: {error}")
    for warning in dict.fromkeys(warnings):
        yield Finding(Verdict.WARNING, f"{master.address}: {warning}")


def _check_failover(master: "Master") -> Iterator[Finding]:
    """Say what the settings of a master mean for the lanes of others, and for its own jobs."""
    if _config(master.client, "cluster-require-full-coverage") == "yes":
        text = (
            "cluster-require-full-coverage is yes: while any slot has no master, all lanes stop; "
            "set it to no on each server"
        )
        yield Finding(Verdict.WARNING, f"{master.address}: {text}")
    info: Any = master.client.info("replication")
    if info.get("min_slaves_good_slaves") == 0:
        text = (
            "takes no jobs: min-replicas-to-write asks for a replica that has what it has, and "
            "there is none; start one, or set it to 0 until there is"
        )
        yield Finding(Verdict.FAILURE, f"{master.address} {text}")
    elif master.replicas and "min_slaves_good_slaves" not in info:
        text = (
            "min-replicas-to-write is 0: jobs that its replica does not have yet are lost with it; "
            "docs/redis.md says what 1 costs"
        )
        yield Finding(Verdict.WARNING, f"{master.address}: {text}")


def _check_replica(client: "Redis", here: str) -> Iterator[Finding]:
    import redis

    try:
        yield from _check_clock(client, here)
        info: Any = client.info("replication")
    except redis.ResponseError:
        return
    except redis.RedisError as error:
        text = (
            f"{here}, does not answer this host ({error}), which loses its lanes if it takes over"
        )
        yield Finding(Verdict.WARNING, text)
        return
    if info.get("master_link_status") == "down":
        text = f"{here}, gets nothing from its master now: jobs that come are lost with the master"
        yield Finding(Verdict.WARNING, text)


def _is_in(lane: Lane, slots: frozenset[int]) -> bool:
    from redis.crc import key_slot

    return key_slot(lane.namespace.encode()) in slots


def _names(lanes: Sequence[Lane]) -> str:
    if not lanes:
        return "no lane"
    *others, last = [str(lane.number) for lane in lanes]
    return f"lanes {', '.join(others)} and {last}" if others else f"lane {last}"


def _describe(client: "Redis", here: str) -> Iterator[Finding]:
    """Say what a server is and how fast it answers, and warn of its memory and its clock."""
    memory = read_memory(client)
    if memory is not None and memory.is_almost_full:
        text = f"{memory}; a full Redis accepts no jobs: docs/operations.md has what jobs need"
        yield Finding(Verdict.WARNING, f"{here}: {text}")
    found = [_describe_server(client), *([] if memory is None else [str(memory)])]
    text = f"{here}: {', '.join(found)}, {_ping_ms(client):.2f} ms a command"
    yield Finding(Verdict.OK, text)
    yield from _check_clock(client, here)


def _describe_server(client: "Redis") -> str:
    """Return the version of a Redis and what survives its crash, as far as it says so."""
    import redis

    try:
        info = client.info()
    except redis.ResponseError:
        return "INFO is forbidden"
    name = f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}"
    if not info.get("aof_enabled"):
        return f"{name}, no append-only file"
    return f"{name}, append-only file, appendfsync {_config(client, 'appendfsync')}"


def _config(client: "Redis", name: str) -> str:
    """Return the value of a setting of a server, or `unknown` if this user may not ask."""
    import redis

    try:
        return str(client.config_get(name)[name])
    except (redis.ResponseError, KeyError):
        return "unknown"


def _check_clock(client: "Redis", here: str) -> Iterator[Finding]:
    seconds, microseconds = client.time()
    ahead_s = time.time() - (seconds + microseconds / 1e6)
    if abs(ahead_s) > _MAX_CLOCK_DIFFERENCE_S:
        text = (
            f"this host's clock is {ahead_s:+.0f} s off that of Redis at {here}; let NTP set both"
        )
        yield Finding(Verdict.WARNING, text)


def _ping_ms(client: "Redis") -> float:
    times = []
    for _ in range(_PINGS):
        started = time.perf_counter()
        client.ping()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3
