"""Make the errors of a submission: too many jobs wait, or an id is in use.

Input: the answers of `submit.lua`. Output: errors.
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


def id_in_use_error(job_id: str) -> InvalidRequest:
    """Return the error for an id that has the record of another job, or a damaged one.

    It does not say in what they differ: the id may be that of another producer's job.
    """
    return InvalidRequest("id", job_id, "is in use already, for a job with other parameters")


def check_same_request(job_id: str, new: JobRequest, stored: str) -> JobRequest:
    """Return the stored request if the two differ in nothing but a seed that was drawn at random.

    Raises:
        InvalidRequest: they differ in more, or the stored one cannot be read.
    """
    try:
        stored_request = JobRequest.parse_stored(stored)
    except (ValueError, InvalidRequest, RecursionError):
        raise id_in_use_error(job_id) from None
    stored_fields, new_fields = stored_request.model_dump(), new.model_dump()
    # Release 0.1.0 stored a text that is given but empty like one that is not given.
    for fields in (stored_fields, new_fields):
        fields["negative_prompt"] = str(fields.get("negative_prompt", "")).strip()
    if "seed" not in new.model_fields_set:
        new_fields["seed"] = stored_fields.get("seed")
    if new_fields != stored_fields:
        raise id_in_use_error(job_id)
    return stored_request
