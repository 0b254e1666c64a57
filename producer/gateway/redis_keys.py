"""Each Redis key that only the HTTP gateway uses is spelled once, here. `docs/redis.md` lists them
for operators; `shared.jobs.redis_keys` has those of jobs."""


def api_keys_key(namespace: str) -> str:
    """Return the key of the API keys (hash: id to JSON)."""
    return f"{namespace}:api-keys"


def api_keys_used_key(namespace: str) -> str:
    """Return the key of when each API key was used last (hash: id to Unix seconds)."""
    return f"{namespace}:api-keys:used"


def rates_prefix(namespace: str) -> str:
    """Return what the keys of the counted requests begin with (lists of times, by `limits`)."""
    return f"{namespace}:rates"


def image_quota_key(namespace: str, key_id: str, day: str) -> str:
    """Return the key of the images of one API key and UTC day (string: a number)."""
    return f"{namespace}:quota:{key_id}:{day}"


def image_charge_key(namespace: str, key_id: str, name: str) -> str:
    """Return the key of the mark that the images of a job or run are charged to the quota of an API
    key (string: their number).

    Args:
        name: the stored id of the job, or the id of the run.
    """
    return f"{namespace}:charged:{key_id}:{name}"


def address_secret_key(namespace: str) -> str:
    """Return the key of the secret of the gateways of a fleet (string); see `FleetSecret`."""
    return f"{namespace}:http-secret"


def request_key(namespace: str, digest: str) -> str:
    """Return the key of the job that a request made (string: job id); see `gateway.jobs.repeats`.

    Args:
        digest: of the request.
    """
    return f"{namespace}:http-request:{digest}"


def refused_try_key(namespace: str, digest: str) -> str:
    """Return the key of the note that a try of a request was refused (string).

    Args:
        digest: of what the tries have in common beside their body; see `gateway.jobs.repeats`.
    """
    return f"{namespace}:http-refused:{digest}"


def files_key(namespace: str, folder: str) -> str:
    """Return the key of the files of one tenant (hash: id to JSON).

    Args:
        folder: the tenant's, in the store.
    """
    return f"{namespace}:http-files:{folder}"


def files_expiring_key(namespace: str) -> str:
    """Return the key of when each file of all tenants expires (sorted set: `folder/id`)."""
    return f"{namespace}:http-files-expiring"


def tenant_jobs_key(namespace: str, tenant: str) -> str:
    """Return the key of the jobs that a tenant has submitted over HTTP (sorted set: id to
    microseconds).

    Args:
        tenant: what stands for it in keys; see `tenant_key_part`.
    """
    return f"{namespace}:http-jobs:{tenant}"


def starred_jobs_key(namespace: str, tenant: str) -> str:
    """Return the key of the jobs that a tenant has starred (sorted set: stored id to microseconds).

    Args:
        tenant: what stands for it in keys; see `tenant_key_part`.
    """
    return f"{namespace}:http-starred:{tenant}"


def cancel_deadlines_key(namespace: str) -> str:
    """Return the key of the jobs that are cancelled at a time (sorted set: job id by Unix
    seconds)."""
    return f"{namespace}:cancel-at"


def webui_jobs_key(namespace: str, owner: str) -> str:
    """Return the key of the open jobs of one caller at the API of the web UI (sorted set: job id
    by the Unix seconds of its submission).

    Args:
        owner: the caller's; see `Caller.owner`.
    """
    return f"{namespace}:http-webui-jobs:{owner}"


def webui_model_key(namespace: str, owner: str) -> str:
    """Return the key of the model that one caller has set by the API of the web UI (string).

    Args:
        owner: the caller's; see `Caller.owner`.
    """
    return f"{namespace}:http-webui-model:{owner}"


def ordered_run_key(namespace: str, run_id: str) -> str:
    """Return the key of a batch or run that was ordered over HTTP (hash: field to JSON)."""
    return f"{namespace}:http-run:{run_id}"


def ordered_runs_key(namespace: str, folder: str) -> str:
    """Return the key of the batches and runs of one tenant (sorted set: id by time).

    Args:
        folder: the tenant's, in the store.
    """
    return f"{namespace}:http-runs:{folder}"


def runs_due_key(namespace: str) -> str:
    """Return the key of when a gateway must look at each batch or run again (sorted set: id)."""
    return f"{namespace}:http-runs-due"


def verifications_due_key(namespace: str) -> str:
    """Return the key of when a gateway must go on with each verification of a run (sorted set: run
    and verification)."""
    return f"{namespace}:http-verifications-due"
