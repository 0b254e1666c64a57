"""Retry a failed attempt, later and perhaps on another worker, or give it up.

Input: a failed attempt and its error. Output: a job that is scheduled again, or a dead letter. The
error says whether a retry may help (`retryable`) and how often. The pause is kept in Redis, so it
survives this worker.
"""

import logging
from typing import Final

from imagefleet.shared.errors import DeviceError, ImagefleetError
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.failed_attempts import failed_alone
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.process.backoff import backoff_s
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.jobs.earlier_failures import with_earlier_failures
from imagefleet.worker.process import metrics
from imagefleet.worker.queues.claims import Claims

log = logging.getLogger(__name__)

_MIN_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 300.0


class RetryPolicy:
    """Decides whether a failed attempt is retried. Safe to share between threads."""

    def __init__(
        self, records: JobRecords, claims: Claims, dead_letters: DeadLetters, max_retries: int
    ) -> None:
        self._records = records
        self._claims = claims
        self._dead_letters = dead_letters
        self._max_retries = max_retries

    def schedule_retry(self, attempt: Attempt, error: ImagefleetError) -> bool:
        """Schedule a retry after `error`, or add the job's message to the dead letters.

        Returns:
            True if the job is retried, or another attempt holds it already; False if it should
            fail now.

        Raises:
            JobCancelled: the producer asked to cancel the job.
        """
        retries = attempt.retries
        if error.retryable and _retries_of(attempt, error) < self._max_retries_after(error):
            pause_s = backoff_s(retries, min_s=_MIN_BACKOFF_S, max_s=_MAX_BACKOFF_S)
            claim = (self._claims.key, attempt.tag)
            failed = (attempt.job_id, attempt.token, claim, pause_s, error.code, str(error))
            if self._records.retry(*failed):
                log.warning("job %s is retried in %.1f s: %s", attempt.job_id, pause_s, error)
                metrics.RETRIES.inc()
            return True
        error = with_earlier_failures(error, attempt.failures, self._claims.worker)
        claimed = self._claims.find(attempt.tag)
        if claimed is not None:
            self._dead_letters.add(
                *claimed,
                code=error.code,
                reason=str(error),
                deliveries=retries + 1,
                worker=self._claims.worker,
            )
        return False

    def _max_retries_after(self, error: ImagefleetError) -> int:
        own_limit = self._max_retries if error.max_retries is None else error.max_retries
        return min(own_limit, self._max_retries)


def _retries_of(attempt: Attempt, error: ImagefleetError) -> int:
    """Return how many retries count against another one after `error`. Failures on devices count
    for themselves: they tell a bad prompt from a bad host."""
    if isinstance(error, DeviceError):
        return len(failed_alone(attempt.failures))
    return attempt.retries
