"""Name the Redis keys of bulk runs.

<namespace>:bulk                  sorted set: run by start time
<namespace>:bulk:looked           string: exists until the next search for stalled runs is due
<namespace>:bulk:still            set: stalled runs that no worker has been given yet
<namespace>:bulk:<run>            hash: parameters, state and counts of a run, its last change
<namespace>:bulk:<run>:shards     hash: shard number to `state|attempt|worker|done|failed|tries`
<namespace>:bulk:<run>:workers    hash: worker to the samples it generated
<namespace>:bulk:<run>:reasons    hash: shard number to its failed samples by error code (JSON)
<namespace>:bulk:<run>:errors     hash: shard number to `seconds|code|worker|message`
"""

from typing import NamedTuple

from imagefleet.shared.jobs.redis_keys import outbox_key, outbox_messages_key


class RunKeys(NamedTuple):
    """The keys of one run, in the order in which the scripts take them."""

    run: str
    shards: str
    workers: str
    reasons: str
    errors: str


def index_key(namespace: str) -> str:
    """Return the key of the sorted set of runs, scored by start time."""
    return f"{namespace}:bulk"


def search_throttle_key(namespace: str) -> str:
    """Return the key of the string that exists until the next search for stalled runs is due."""
    return f"{index_key(namespace)}:looked"


def stalled_runs_key(namespace: str) -> str:
    """Return the key of the set of stalled runs that no worker has been given yet."""
    return f"{index_key(namespace)}:still"


def run_key(namespace: str, run: str) -> str:
    """Return the key of one run's hash."""
    return f"{index_key(namespace)}:{run}"


def run_keys(namespace: str, run: str) -> RunKeys:
    key = run_key(namespace, run)
    parts = (f"{key}:{part}" for part in ("shards", "workers", "reasons", "errors"))
    return RunKeys(key, *parts)


def outbox_keys(namespace: str) -> tuple[str, str]:
    """Return the keys of the outbox, in the order in which the scripts take them."""
    return outbox_key(namespace), outbox_messages_key(namespace)
