"""Check whether jobs still run under their attempts, with one check for all that are in flight.

Input: attempts. Output: whether the job of each still runs under it. A check counts for a moment,
because the images of a batch are stored at about the same time.
"""

import threading
import time
from typing import Final

from imagefleet.shared.jobs.progress import AttemptVerdict
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.worker.jobs.attempt import Attempt
from imagefleet.worker.jobs.in_flight import InFlight

MAX_AGE_S: Final = 0.5
"""Seconds that an answer counts, from when it was asked for. No lease is lost in this time unless
it was not renewed for long before."""
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It goes on while the host sleeps, so that a host that was frozen asks again."""


class CurrentAttemptCheck:
    """Says whether attempts hold their jobs. Safe to share between threads."""

    def __init__(self, records: JobRecords, in_flight: InFlight) -> None:
        self._records = records
        self._in_flight = in_flight
        self._lock = threading.Lock()

    def is_current(self, attempt: Attempt) -> bool:
        """Return whether the job is running under this attempt, as of the last half second.

        Attempts that do not hold their jobs are asked about one by one, so only a good answer is
        ever half a second old.
        """
        if not _was_current_lately(attempt):
            with self._lock:  # the threads of a batch wait for one answer
                if not _was_current_lately(attempt):
                    self._check_all(attempt)
        if _was_current_lately(attempt):
            return True
        return self._records.is_current(attempt.job_id, attempt.token)

    def _check_all(self, attempt: Attempt) -> None:
        delivered = [each for each in self._in_flight.attempts() if each.delivered]
        attempts = list(dict.fromkeys([attempt, *delivered]))
        checked_at = time.clock_gettime(_CLOCK)
        verdicts = self._records.check_attempts(*((each.job_id, each.token) for each in attempts))
        for each, verdict in zip(attempts, verdicts, strict=True):
            if verdict is not AttemptVerdict.LOST:
                each.current_at = checked_at


def _was_current_lately(attempt: Attempt) -> bool:
    return time.clock_gettime(_CLOCK) - attempt.current_at < MAX_AGE_S
