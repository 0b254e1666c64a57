"""Where Redis keeps the runs of a namespace. What the keys hold, `shared.bulk.runs` tells."""

from typing import NamedTuple


class RunKeys(NamedTuple):
    """Of one run, in the order in which the scripts take them."""

    run: str
    shards: str
    workers: str
    reasons: str


def index_key(namespace: str) -> str:
    """The sorted set of runs, by the time they began."""
    return f"{namespace}:bulk"


def search_throttle_key(namespace: str) -> str:
    """Stands while no other search for runs that stand still is due."""
    return f"{index_key(namespace)}:looked"


def stalled_runs_key(namespace: str) -> str:
    """The set of runs that were found to stand still, and given to nobody yet."""
    return f"{index_key(namespace)}:still"


def run_key(namespace: str, run: str) -> str:
    """The hash of one run."""
    return f"{index_key(namespace)}:{run}"


def run_keys(namespace: str, run: str) -> RunKeys:
    key = run_key(namespace, run)
    return RunKeys(key, f"{key}:shards", f"{key}:workers", f"{key}:reasons")
