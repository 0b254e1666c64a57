"""Each Redis key of a namespace is spelled once, here. `docs/redis.md` lists them for operators.

`shared.bulk.redis_keys` has the keys of datasets, `shared.webhooks.redis_keys` those that
only the outbox uses, `shared.jobs.queues` the names of queues.
`queue.lua` derives the keys of the known queues from a list's name, `changes.lua` the channel of a
job's changes from the key of its record.
"""


def job_key(namespace: str, job_id: str) -> str:
    """Return the key of a job's record (hash)."""
    return f"{namespace}:job:{job_id}"


def changes_channel(namespace: str, job_id: str) -> str:
    """Return the channel on which each change of a job's record is published (its state)."""
    return f"{namespace}:changes:{job_id}"


def job_ends_key(namespace: str, period: int | None = None) -> str:
    """Return the key of the ends of jobs since the namespace was made, or of those in one period
    (hash: state, or `failed:code`, to number); see `recent_ends.py`."""
    return f"{namespace}:ends" + ("" if period is None else f":{period}")


def failed_jobs_key(namespace: str) -> str:
    """Return the key of the jobs that failed last (sorted set: id by time)."""
    return f"{namespace}:ends:failed"


def host_failures_key(namespace: str, period: int | None = None) -> str:
    """Return the key of the failed attempts in one period (hash: `host code` to number), or what
    these keys begin with; see `host_failures.py`."""
    return f"{namespace}:failures" + ("" if period is None else f":{period}")


def model_switch_key(namespace: str, model: str) -> str:
    """Return the key that one worker holds while it switches to a model (string)."""
    return f"{namespace}:model-switch:{model}"


def known_queues_key(namespace: str) -> str:
    """Return the key of the queues that hold, or may hold, messages (set); see `queue.lua`."""
    return f"{namespace}:queues"


def sweep_cursor_key(namespace: str) -> str:
    """Return the key of where the next sweep of the known queues goes on (string)."""
    return f"{namespace}:queues:cursor"


def urgent_queues_key(namespace: str) -> str:
    """Return the key of the queues that may hold messages of the highest level (set)."""
    return f"{namespace}:queues:0"


def claims_key(namespace: str, worker: str) -> str:
    """Return the key of a worker's claims (hash: tag to list \\0 message)."""
    return f"{namespace}:claims:{worker}"


def leases_key(namespace: str) -> str:
    """Return the key of the leases (sorted set: worker by the time at which its lease expires)."""
    return f"{namespace}:leases"


def lease_lengths_key(namespace: str) -> str:
    """Return the key of the lengths of the leases (hash: worker to seconds)."""
    return f"{namespace}:leases:lengths"


def workers_key(namespace: str) -> str:
    """Return the key of the status that each worker reports (hash: worker to JSON)."""
    return f"{namespace}:workers"


def drain_requests_key(namespace: str) -> str:
    """Return the key of the workers that were asked to drain (set)."""
    return f"{namespace}:workers:drain"


def deliveries_key(namespace: str) -> str:
    """Return the key of the delivery counts (hash: SHA-1 of a message to count)."""
    return f"{namespace}:deliveries"


def delayed_key(namespace: str) -> str:
    """Return the key of the delayed messages (sorted set: list \\0 message by due time)."""
    return f"{namespace}:later"


def postponed_key(namespace: str, digest: str) -> str:
    """Return the key of when a message, by its SHA-1, first waited for a newer worker (string)."""
    return f"{namespace}:postponed:{digest}"


def expiring_key(namespace: str, store_address: str) -> str:
    """Return the key of the images that expire in a store (sorted set: job id by due time)."""
    return f"{namespace}:expiring:{store_address}"


def dead_letters_key(namespace: str) -> str:
    """Return the key of the dead letters' order (sorted set: id by time)."""
    return f"{namespace}:dead"


def dead_letter_contents_key(namespace: str) -> str:
    """Return the key of the dead letters (hash: id to JSON)."""
    return f"{namespace}:dead:letters"


def dead_letter_totals_key(namespace: str) -> str:
    """Return the key of the dead letters' totals (hash: `bytes`, `dropped`)."""
    return f"{namespace}:dead:totals"


def offers_key(namespace: str) -> str:
    """Return the key of the workers' offers (hash: model to JSON)."""
    return f"{namespace}:catalogue"


def offered_at_key(namespace: str) -> str:
    """Return the key of when each model was offered last (sorted set: model by Unix seconds)."""
    return f"{namespace}:catalogue:offered"


def weights_key(namespace: str) -> str:
    """Return the key of the tenants' weights (hash: tenant to weight)."""
    return f"{namespace}:weights"


def limits_key(namespace: str) -> str:
    """Return the key of the limits of waiting jobs (hash: tenant to number of jobs)."""
    return f"{namespace}:limits"


def outbox_key(namespace: str) -> str:
    """Return the key of the pending callbacks (sorted set: id by due time)."""
    return f"{namespace}:outbox"


def outbox_messages_key(namespace: str) -> str:
    """Return the key of the callbacks' contents (hash: id to JSON)."""
    return f"{namespace}:outbox:messages"


def outbox_given_up_key(namespace: str) -> str:
    """Return the key of the callbacks that were given up (sorted set: id by time)."""
    return f"{namespace}:outbox:given-up"
