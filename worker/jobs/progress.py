"""Tell the records how far a batch is, without ever holding the devices up.

One thread writes; while it is busy, newer steps replace older ones. On its way back it learns which
jobs were cancelled or taken over.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from imagefleet.shared.errors import JobCancelled, LeaseLost
from imagefleet.shared.jobs.events import callback
from imagefleet.shared.jobs.model import CallbackEvent
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.worker.devices.work import Slot
from imagefleet.worker.images.thumbnail import preview_url
from imagefleet.worker.jobs.attempt import Attempt, attempts_in

log = logging.getLogger(__name__)

_SHORTEST_INTERVAL_S: Final = 0.2
_QUARTERS: Final = 4
"""`progress` callbacks a job gets at most, one a quarter of its steps."""


class ProgressReporter:
    """`report` returns at once; call it from the device thread at every step."""

    def __init__(self, records: JobRecords) -> None:
        self._records = records
        self._latest: tuple[Sequence[Slot], int] | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()

    def report(self, batch: Sequence[Slot], step: int) -> None:
        with self._lock:
            self._latest = (batch, step)
        self._wake.set()

    def _loop(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                latest, self._latest = self._latest, None
            if latest is not None:
                try:
                    self._note_batch(*latest)
                except Exception:  # progress is a courtesy: no reason to stop painting
                    log.exception("progress was not noted")
                time.sleep(_SHORTEST_INTERVAL_S)

    def _note_batch(self, batch: Sequence[Slot], step: int) -> None:
        for attempt in attempts_in(batch):
            if not attempt.ended:
                painting = sum(slot.work is attempt for slot in batch)
                self._note(attempt, attempt.step_of_all(step, painting))

    def _note(self, attempt: Attempt, step: int) -> None:
        steps = attempt.specs[0].steps
        quarter = step * _QUARTERS // steps
        event = None
        if attempt.quarter < quarter < _QUARTERS:
            attempt.quarter = quarter
            kind = CallbackEvent.PROGRESS
            event = callback(kind, attempt.job_id, attempt.request, step=step, steps=steps)
        sketch, attempt.sketch = attempt.sketch, None
        preview = "" if sketch is None else preview_url(sketch())
        try:
            goes_on = self._records.progress(
                attempt.job_id, attempt.token, step, steps, event, preview
            )
        except LeaseLost as error:
            attempt.abandon(error)
        else:
            if not goes_on:
                attempt.abandon(JobCancelled(f"job {attempt.job_id} was cancelled"))
