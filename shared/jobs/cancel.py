"""Cancel a job: a queued one at once, a running one between two steps."""

from imagefleet.shared.jobs.callback_events import JobTimes, build_callback
from imagefleet.shared.jobs.model import CallbackEvent, State, check_job_id
from imagefleet.shared.jobs.records import JobRecords


def cancel(records: JobRecords, job_id: str) -> State:
    """Cancel a job, and return its state now: a running job is asked to end between two steps.

    Raises:
        InvalidRequest: no job may have this id.
        UnknownJob: Redis holds no record of the job.
        UnreadableRecord: the record is damaged, or of a newer release.
    """
    status = records.get(check_job_id(job_id))
    event = build_callback(
        CallbackEvent.CANCELLED,
        job_id,
        status.request,
        times=JobTimes(submitted_at=status.submitted_at),
    )
    while True:
        if records.cancel(job_id, "", event).happened:
            return State.CANCELLED
        state = records.request_cancel(job_id)
        if state is not State.QUEUED:  # QUEUED: it was requeued just now, so repeat
            return state
