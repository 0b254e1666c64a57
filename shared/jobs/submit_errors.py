"""Make the errors of a submission: too many jobs wait, or an id is in use.

The answers of `submit.lua` come in.
"""

from imagefleet.shared.errors import InvalidRequest, QueueFull, TenantLimit
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.tenants import ALL_TENANTS


def queue_full_error(tenant: str, limit: str, waiting: int, more: int) -> QueueFull:
    """Return the error for `more` jobs beside those that wait; `tenant` may be `*` for all."""
    if tenant == ALL_TENANTS:
        kind, subject = QueueFull, "the queue is full"
    else:
        kind, subject = TenantLimit, f"tenant {tenant!r} has enough jobs waiting"
    return kind(
        f"{subject}: {waiting} wait, and {more} more would exceed the limit of {limit}; "
        "submit again later"
    )


def check_same_request(job_id: str, new: JobRequest, stored: str) -> None:
    """Raise InvalidRequest if the two differ in anything but a seed that was drawn at random.

    The error does not say in what: the id may be that of another producer's job.
    """
    try:
        stored_fields = JobRequest.parse_stored(stored).model_dump()
    except (ValueError, InvalidRequest, RecursionError):
        stored_fields = {}
    new_fields = new.model_dump()
    # Release 0.1.0 stored a text that is given but empty like one that is not given.
    for fields in (stored_fields, new_fields):
        fields["negative_prompt"] = str(fields.get("negative_prompt", "")).strip()
    if "seed" not in new.model_fields_set:
        new_fields["seed"] = stored_fields.get("seed")
    if new_fields != stored_fields:
        raise InvalidRequest("id", job_id, "is in use already, for a job with other parameters")
