"""Names of workers, and what they say: the host, and the worker of an attempt.

A worker is named `host:process id:random part`, an attempt of its `worker/tag`. The module uses
neither Redis nor settings.
"""


def worker_of(attempt: str) -> str:
    """Return the worker that makes an attempt; empty if the name does not say it."""
    return attempt.rpartition("/")[0]


def host_of(worker: str) -> str:
    """Return the host of a worker. A name of another form is returned as it is."""
    host, _, rest = worker.rpartition(":")
    return host.rpartition(":")[0] if rest and ":" in host else worker
