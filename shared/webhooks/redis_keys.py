"""The keys that only the outbox uses.

Three others are spelled in `shared.jobs.redis_keys`: a script that changes a job's record writes
the callback in the same step, and the fleet's status counts the callbacks.
"""


def outbox_disabled_key(namespace: str, url: str) -> str:
    """Return the key that exists while the receiver at `url` is disabled (string)."""
    return f"{namespace}:outbox:gone:{url}"


def outbox_answered_key(namespace: str) -> str:
    """Return the key of the receivers that answered lately (sorted set: receiver by time)."""
    return f"{namespace}:outbox:answered"


def outbox_log_key(namespace: str, job_id: str) -> str:
    """Return the key of a job's delivery attempts (list, newest first)."""
    return f"{namespace}:outbox:log:{job_id}"
