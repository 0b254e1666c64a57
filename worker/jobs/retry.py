"""What becomes of an attempt that failed: another one, later and perhaps elsewhere, or the end.

Knows the errors' own answer (`retryable`) and the bound. The pause is kept in Redis, not here, so
it survives this worker.
"""

import logging
from random import uniform
from typing import Final

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.queues.claims import Claims

log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 300.0


class RetryPolicy:
    """Safe to share between threads."""

    def __init__(
        self, records: JobRecords, claims: Claims, dead: DeadLetters, max_retries: int
    ) -> None:
        self._records = records
        self._claims = claims
        self._dead = dead
        self._max_retries = max_retries

    def schedule_retry(self, attempt: Attempt, error: ImagefleetError) -> bool:
        """Whether the job is now to be tried again, or is another attempt's already. If not, its
        message is kept among the dead letters.

        Raises:
            JobCancelled: nobody wants it any more.
        """
        retries = attempt.retries
        if error.retryable and retries < bound(error, self._max_retries):
            pause_s = pause_after(retries)
            claim = (self._claims.key, attempt.tag)
            if self._records.retry(attempt.job_id, attempt.token, claim, pause_s):
                log.warning("job %s again in %.1f s: %s", attempt.job_id, pause_s, error)
            return True
        claimed = self._claims.find(attempt.tag)
        if claimed is not None:
            self._dead.add(*claimed, code=error.code, reason=str(error), deliveries=retries + 1)
        return False


def bound(error: ImagefleetError, max_retries: int) -> int:
    own = error.most_retries
    return max_retries if own is None else min(own, max_retries)


def pause_after(retries: int) -> float:
    """Seconds, twice as many each time, up to half as many at random: what failed together comes
    back spread."""
    return float(uniform(0.5, 1.0) * min(_FIRST_PAUSE_S * 2**retries, _LONGEST_PAUSE_S))
