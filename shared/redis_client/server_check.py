"""Check that a Redis can hold a fleet: its mode, its settings, and the rights of this user.

Input: a client. Output: warnings, or an error whose sentence says what to change. A Redis that does
not answer the questions, as managed ones may, is used with a warning.
"""

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.redis_client.connection import server_of, translate_errors
from imagefleet.shared.redis_client.scripts import load_script

if TYPE_CHECKING:
    from redis import Redis

_UNHEARD: Final = (
    "this user of Redis may not publish the changes of jobs, so gateways see them up to 2 s later; "
    "give it the channels &{namespace}:changes:* of docs/redis.md"
)

_WHOLE_SLOTS_SINCE: Final = 9
"""Valkey of this version moves a slot with all its keys at once."""


def check_server(
    client: "Redis", url: str, namespace: str, *, runs_celery: bool = True, in_lane: bool = False
) -> list[str]:
    """Return warnings about the Redis of a worker or producer. It writes and deletes a few keys.

    Args:
        runs_celery: Whether this is a worker, which calls what Celery calls too.
        in_lane: Whether this is the server of a lane in a cluster.

    Raises:
        ConfigurationError: Redis is a cluster, evicts messages, or does not give this user the
            rights that it needs.
        BrokerUnavailable: Redis does not answer.
    """
    import redis

    with translate_errors(url):
        try:
            info: Mapping[str, Any] = client.info()
        except redis.ResponseError as error:
            info, warnings = {}, [f"cannot check the settings of Redis: {error}"]
        else:
            warnings = find_risks(info, in_lane=in_lane)
        if fault := find_fault(info, in_lane=in_lane):
            raise ConfigurationError(f"Redis at {server_of(url)} {fault}")
        return warnings + _check_rights(client, url, namespace, runs_celery)


def is_replica(client: "Redis") -> bool:
    """Return whether Redis only copies another one, and takes no writes."""
    import redis

    try:
        info: Mapping[str, Any] = client.info("replication")
    except redis.ResponseError:
        return False
    return info.get("role") == "slave" and info.get("slave_read_only", 1) == 1


def find_fault(info: Mapping[str, Any], *, in_lane: bool = False) -> str | None:
    """Return what makes a Redis unusable for a fleet, from its INFO. None: nothing.

    Args:
        in_lane: Whether a lane of a cluster uses it.
    """
    is_cluster = info.get("redis_mode") == "cluster" or info.get("cluster_enabled") == 1
    if is_cluster and not in_lane:
        return (
            "is a cluster, and a claim reads many queues in one script; use the address "
            "redis+cluster://, with which a fleet has lanes, or a Redis without cluster mode"
        )
    if _evicts_messages(info) and int(info.get("maxmemory", 0)) > 0:
        return (
            f"evicts messages and records when its memory is full (maxmemory-policy "
            f"{info['maxmemory_policy']}), which loses jobs; set maxmemory-policy to noeviction"
        )
    return None


def find_risks(info: Mapping[str, Any], *, in_lane: bool = False) -> list[str]:
    """Return what endangers the jobs in a Redis that is usable, from its INFO."""
    risks = _risks_in_cluster(info) if in_lane else []
    policy = info.get("maxmemory_policy", "noeviction")
    if find_fault(info, in_lane=in_lane):
        pass  # it is worse than a risk
    elif _evicts_messages(info):
        risks.append(
            f"Redis has maxmemory-policy {policy}: once maxmemory is set, a full Redis evicts "
            "messages and records, which loses jobs; set it to noeviction"
        )
    elif policy != "noeviction":
        risks.append(
            f"Redis has maxmemory-policy {policy}: a full Redis evicts the records of finished "
            "jobs before their retention is over; set it to noeviction"
        )
    if info.get("aof_enabled") == 0 and not info.get("connected_slaves"):
        risks.append(
            "Redis has no append-only file and no replica: if it crashes, jobs are lost; "
            "set appendonly to yes"
        )
    return risks


def _risks_in_cluster(info: Mapping[str, Any]) -> list[str]:
    risks = []
    major = str(info.get("valkey_version", "")).partition(".")[0]
    if not major.isdecimal() or int(major) < _WHOLE_SLOTS_SINCE:
        risks.append(
            f"Redis is not Valkey {_WHOLE_SLOTS_SINCE} or newer, and moves slots key by key: the "
            "jobs of a lane wait while its slot is moved"
        )
    if not info.get("connected_slaves"):
        risks.append(
            "Redis has a master without a replica: the jobs of its lanes wait while it is down"
        )
    return risks


def _evicts_messages(info: Mapping[str, Any]) -> bool:
    return str(info.get("maxmemory_policy", "")).startswith("allkeys")


def _check_rights(client: "Redis", url: str, namespace: str, runs_celery: bool) -> list[str]:
    """Call what this user must call. Return a warning if Redis takes no writes now, or if this user
    may not publish the changes of jobs."""
    import redis

    from imagefleet.shared.redis_client.write_errors import is_temporary

    name = f"check-{uuid.uuid4().hex[:12]}"
    try:
        script = load_script(client, __package__, "check_rights")
        may_publish = script(keys=[f"{namespace}:job:{name}", f"{namespace}.{name}"])
        if runs_celery:
            _call_commands_of_celery(client, namespace, name)
    except redis.ResponseError as error:
        if is_temporary(error):
            return [f"cannot check the rights of this user now: {error}"]
        raise ConfigurationError(
            f"Redis at {server_of(url)} does not give this user the rights of docs/redis.md: "
            f"{error}"
        ) from None
    return [] if may_publish else [_UNHEARD.format(namespace=namespace)]


def _call_commands_of_celery(client: Any, namespace: str, name: str) -> None:
    result, binding = f"celery-task-meta-{name}", f"_kombu.binding.{name}"
    with client.pipeline(transaction=True) as pipe:  # a worker that is killed leaves no key behind
        pipe.execute_command("SETEX", result, 60, "{}")
        pipe.publish(result, "{}")
        pipe.get(result)
        pipe.delete(result)
        pipe.sadd(binding, "a")
        pipe.smembers(binding)
        pipe.srem(binding, "a")
        pipe.zadd(f"unacked_{name}", {"a": 0})
        pipe.delete(f"unacked_{name}")
        pipe.execute()
    client.brpop([f"{namespace}.{name}"], timeout=0.001)
    database = client.connection_pool.connection_kwargs.get("db") or 0
    with client.pubsub() as subscriptions:
        subscriptions.subscribe(result)
        subscriptions.psubscribe(f"/{database}.{namespace}.pidbox")
        for _ in range(2):  # the answers, of which one may be an error
            subscriptions.get_message(timeout=5)
