"""Name the Redis keys of bulk runs. `shared.bulk.runs` describes their content."""

from typing import NamedTuple


class RunKeys(NamedTuple):
    """The keys of one run, in the order in which the scripts take them."""

    run: str
    shards: str
    workers: str
    reasons: str


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
    return RunKeys(key, f"{key}:shards", f"{key}:workers", f"{key}:reasons")
