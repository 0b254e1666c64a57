"""Report the progress of batches to the job records without delaying the devices or Redis.

One thread writes. While it is busy, a newer step replaces an older one. The answers say which jobs
were cancelled or are held by another attempt; their attempts are abandoned.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from imagefleet.shared.errors import JobCancelled, LeaseLost
from imagefleet.shared.jobs.callback_events import JobTimes, build_callback
from imagefleet.shared.jobs.model import CallbackEvent
from imagefleet.shared.jobs.progress import AttemptVerdict, ProgressReport
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.images.encode_preview import preview_url
from imagefleet.worker.jobs.attempt import Attempt, attempts_in
from imagefleet.worker.process.log_format import log_fields

log = logging.getLogger(__name__)

MIN_INTERVAL_S: Final = 1.0
"""Seconds between two checks whether a job is cancelled, in a small fleet."""
_MAX_INTERVAL_S: Final = 2.0
_INTERVAL_PER_WORKER_S: Final = 0.25
"""The seconds between two checks of a worker are this number times the workers of the fleet."""
_CHECKS_PER_RECORD: Final = 2
"""The step of a job is recorded once in this number of checks. Redis writes each record to its
append-only file, which costs it several times as much as a check."""
_QUARTERS: Final = 4
"""A job gets a `progress` callback after each quarter of its steps but the last."""


def cancel_check_interval_s(workers: int) -> float:
    """Return the seconds between two checks whether a job is cancelled, in a fleet of this many
    workers."""
    return min(max(MIN_INTERVAL_S, workers * _INTERVAL_PER_WORKER_S), _MAX_INTERVAL_S)


def record_interval_s(workers: int) -> float:
    """Return the seconds after which the step of a job is recorded again."""
    return _CHECKS_PER_RECORD * cancel_check_interval_s(workers)


class ProgressReporter:
    """Writes progress in a thread of its own. Call `report` at every step; it returns at once."""

    def __init__(self, records: JobRecords, count_workers: Callable[[], int] = lambda: 1) -> None:
        """
        Args:
            count_workers: returns how many workers the fleet has; in a large one each reports less
                often.
        """
        self._records = records
        self._count_workers = count_workers
        self._latest: Mapping[Slot, int] | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="progress", daemon=True)

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    def stop(self) -> None:
        """Stop writing."""
        self._stopped.set()
        self._wake.set()

    def report(self, steps: Mapping[Slot, int]) -> None:
        """Note how many steps the slots on the devices have done."""
        with self._lock:
            self._latest = steps
        self._wake.set()

    def _loop(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                latest, self._latest = self._latest, None
            if latest is not None:
                workers = self._count_workers()
                try:
                    self.record_due(
                        latest, cancel_check_interval_s(workers), record_interval_s(workers)
                    )
                except Exception:  # jobs succeed without their progress
                    log.exception("progress was not recorded")
                time.sleep(MIN_INTERVAL_S)

    def record(self, steps: Mapping[Slot, int]) -> None:
        """Write how many steps the slots have done, without the thread. Abandon cancelled jobs."""
        self.record_due(steps, 0.0, 0.0)

    def record_due(
        self, steps: Mapping[Slot, int], check_after_s: float, record_after_s: float
    ) -> None:
        """Check the jobs of the slots, and write their steps, each not too soon after the last
        time. Callbacks and previews are written whenever a job is checked."""
        now = time.monotonic()
        attempts = [
            attempt
            for attempt in attempts_in(steps)
            if not attempt.ended and now - attempt.checked_at >= check_after_s
        ]
        reports = [
            _report(attempt, steps, only_check=now - attempt.recorded_at < record_after_s)
            for attempt in attempts
        ]
        verdicts = self._records.record_progress(*reports)
        for attempt, report, verdict in zip(attempts, reports, verdicts, strict=True):
            attempt.checked_at = now
            if not report.only_check:
                attempt.recorded_at = now
            attempt.reported_quarter = _quarter(report.step, report.steps)
            if verdict is AttemptVerdict.LOST:
                lost = f"job {attempt.job_id}: another attempt holds it, or it has ended"
                attempt.abandon(LeaseLost(lost))
            elif verdict is AttemptVerdict.CANCEL:
                attempt.abandon(JobCancelled(f"job {attempt.job_id} was cancelled"))


def _report(attempt: Attempt, slots: Mapping[Slot, int], *, only_check: bool) -> ProgressReport:
    """Update the step of an attempt and return its report. `only_check`: unless there is more to
    report than the step."""
    step = attempt.advance_step(done for slot, done in slots.items() if slot.work is attempt)
    steps = attempt.specs[0].steps
    event = None
    if attempt.reported_quarter < _quarter(step, steps) < _QUARTERS:
        kind = CallbackEvent.PROGRESS
        event = build_callback(
            kind,
            attempt.job_id,
            attempt.request,
            step=step,
            steps=steps,
            worker=attempt.worker,
            times=JobTimes(submitted_at=attempt.submitted_at, started_at=attempt.began_at),
            trace_parent=attempt.trace_parent,
        )
    preview = _preview(attempt)
    return ProgressReport(
        job_id=attempt.job_id,
        attempt=attempt.token,
        step=step,
        steps=steps,
        callback=event,
        preview=preview,
        only_check=only_check and event is None and not preview,
    )


def _quarter(step: int, steps: int) -> int:
    return step * _QUARTERS // steps


def _preview(attempt: Attempt) -> str:
    """Return the latest preview as a data URL; empty if there is no new one."""
    fetch, attempt.fetch_preview = attempt.fetch_preview, None
    try:
        return "" if fetch is None else preview_url(fetch())
    except Exception:  # the other jobs of the batch have their progress recorded
        with log_fields(job_id=attempt.job_id, claim=attempt.tag):
            log.exception("job %s has no preview", attempt.job_id)
        return ""
