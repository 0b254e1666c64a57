"""The device loop: one batch after the other, as long as there is work.

Input: batches of slots; the loop asks for one whenever the devices are free. Output: images, which
are delivered to the work that they belong to. Copying the pixels of one batch overlaps the next
batch. When a batch fails, the health check decides whether the devices or its jobs are to blame.
The loop depends on neither Celery nor JAX.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from imagefleet.worker.devices.batch_metrics import BatchMetrics
from imagefleet.worker.devices.failed_slots import (
    abandon_for_quarantine,
    fail_work,
    halves_of,
    is_job_error,
    log_failure,
)
from imagefleet.worker.devices.failure_streak import FailureStreak
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.devices.host_fault import STORE_FAILED, HostFault, find_host_fault
from imagefleet.worker.devices.slots import Slot, work_in
from imagefleet.worker.engine.contract.interface import (
    Engine,
    ImageArray,
    ImageArrays,
    RunningBatch,
)
from imagefleet.worker.process import metrics
from imagefleet.worker.process.critical_thread import critical_thread

log = logging.getLogger(__name__)

_MAX_BATCHES_ON_DEVICES: Final = 2
"""Batches between the first step and the last pixel: one is denoised, one is decoded or copied."""
_PREVIEW_INTERVAL_S: Final = 2.0

OnStep = Callable[[Sequence[Slot], int], None]
"""Called at the start of a batch and after each step, with the number of steps it has done."""
OnDevicesFailed = Callable[[Sequence[Slot], Sequence[Slot], str], None]
"""Called when the devices fail, with the batch that failed, the slots of other batches that waited
to be retried, and the error. It takes over both, and everything else that waits for the devices."""


class DeviceLoop:
    """Runs the device thread. `next_batch` may block for a moment; `on_step` must not."""

    def __init__(
        self,
        engine: Engine,
        next_batch: Callable[[], Sequence[Slot]],
        on_step: OnStep,
        poll_s: float,
        health: HealthCheck,
        on_devices_failed: OnDevicesFailed,
        streak: FailureStreak | None = None,
    ) -> None:
        self._engine = engine
        self._next_batch = next_batch
        self._on_step = on_step
        self._poll_s = poll_s
        self._stopping = threading.Event()
        self._health = health
        self._on_devices_failed = on_devices_failed
        self._halves: deque[Sequence[Slot]] = deque()
        self._failed: deque[tuple[Sequence[Slot], BaseException]] = deque()
        self._on_devices: list[Sequence[Slot]] = []
        self._streak = streak or FailureStreak()
        self._progress = 0
        self._previewed_at = -_PREVIEW_INTERVAL_S
        self._metrics = BatchMetrics(engine.capacity)
        self._changed = threading.Condition()
        self._fetcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fetch")
        self._thread = critical_thread(self._loop, "devices")

    def start(self) -> None:
        """Start the device thread."""
        self._thread.start()

    def stop(self) -> None:
        """Take no further batch. The batches on the devices continue; see `join`."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the batches on the devices. Return False if any is left after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        with self._changed:
            finished = self._changed.wait_for(
                lambda: not self._on_devices, max(0.0, deadline - time.monotonic())
            )
        return finished and not self._thread.is_alive()

    def progress_counts(self) -> list[int | None]:
        """Return a number that grows while the devices make progress; None while they are idle."""
        if not (self._on_devices or self._health.checking_devices):
            return [None]
        return [self._progress + self._health.steps]

    def pop_waiting(self) -> list[Slot]:
        """Return no slots: whole batches go to the devices at once."""
        return []

    def on_devices(self, stream: int | None = None) -> list[Slot]:
        """Return the slots between the first step and the last pixel. All devices are stream 0."""
        with self._changed:
            return [slot for batch in self._on_devices for slot in batch]

    def _loop(self) -> None:
        while self._has_work() or not self._stopping.is_set():
            if self._failed:
                self._handle_failure(*self._failed.popleft())
                continue
            if self._stopping.is_set() and not self._halves:  # an image may still fail
                with self._changed:
                    self._changed.wait_for(lambda: self._failed or not self._on_devices)
                continue
            if self._health.storage_failed and not self._stopping.is_set():
                self._quarantine([], STORE_FAILED)
                continue
            batch = self._halves.popleft() if self._halves else self._next_batch()
            if batch:
                self._mark_started(batch)
                self._run(batch)
            else:
                self._stopping.wait(self._poll_s)

    def _has_work(self) -> bool:
        # In this order: a batch that fails joins `_failed` before it leaves the devices.
        return bool(self._on_devices or self._failed or self._halves)

    def _run(self, batch: Sequence[Slot]) -> None:
        started = time.monotonic()
        try:
            running = self._denoise(batch)
        except Exception as error:  # after any error the batch must end and the loop continue
            self._mark_done(batch, error)
            return
        if all(slot.work.ended for slot in batch):
            self._mark_done(batch, None)
            return
        fetched = self._fetcher.submit(self._fetch, batch, running, started)
        fetched.add_done_callback(lambda future: self._mark_done(batch, future.exception()))

    def _denoise(self, batch: Sequence[Slot]) -> RunningBatch:
        running = self._engine.start_batch([slot.spec for slot in batch], batch[0].work.shape)
        self._metrics.began(batch)
        self._on_step(batch, 0)
        dropped: set[int] = set()
        for step in running:
            ended = {at for at, slot in enumerate(batch) if slot.work.ended}
            if ended - dropped:
                running.drop(sorted(ended - dropped))
                dropped |= ended
            self._metrics.stepped(batch)
            self._start_previews(batch, running)
            self._on_step(batch, step)
            self._progress += 1
        return running

    def _start_previews(self, batch: Sequence[Slot], running: RunningBatch) -> None:
        """Start previews for the work that wants them, every `_PREVIEW_INTERVAL_S`."""
        wanted = [(at, slot.work) for at, slot in enumerate(batch) if slot.wants_preview]
        if wanted and time.monotonic() - self._previewed_at >= _PREVIEW_INTERVAL_S:
            self._previewed_at = time.monotonic()
            wait = running.previews()
            for at, work in wanted:
                work.fetch_preview = partial(_image_at, wait, at)

    def _fetch(self, batch: Sequence[Slot], running: RunningBatch, started: float) -> None:
        images, flags = running.outputs(), running.flagged()
        self._streak.end()
        device_s = time.monotonic() - started
        metrics.IMAGES.inc(sum(not slot.work.ended for slot in batch))
        for work in work_in(batch):
            work.device_s += device_s
        for slot, image, flagged in zip(batch, images, flags, strict=True):
            slot.work.deliver(slot.index, image, flagged=flagged)

    def _mark_started(self, batch: Sequence[Slot]) -> None:
        """Wait until the devices can take `batch`."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._on_devices) < _MAX_BATCHES_ON_DEVICES)
            self._on_devices.append(batch)
            self._metrics.set_busy(True)
            self._progress += 1

    def _mark_done(self, batch: Sequence[Slot], error: BaseException | None) -> None:
        if error is not None:
            log_failure(batch, error)
            metrics.BATCH_FAILURES.inc()
            self._failed.append((batch, error))
        with self._changed:
            self._on_devices.remove(batch)
            self._metrics.set_busy(bool(self._on_devices))
            self._progress += 1
            self._changed.notify_all()

    def _handle_failure(self, batch: Sequence[Slot], error: BaseException) -> None:
        """Bisect the batch if a job of it is to blame; quarantine the worker if the devices are."""
        fault = find_host_fault(
            error,
            batch[0].work.shape,
            self._streak,
            self._health,
            await_devices=self._await_devices,
        )
        if fault is None:
            self._bisect(batch, error)
        else:
            self._quarantine(batch, fault)

    def _await_devices(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._on_devices)

    def _quarantine(self, batch: Sequence[Slot], fault: HostFault) -> None:
        self._await_devices()  # a batch that fails meanwhile joins `_failed`, and so `waiting`
        waiting = self._pop_waiting()
        self._on_devices_failed(batch, waiting, fault.reason)
        abandon_for_quarantine([*batch, *waiting])
        self._health.recover(self._stopping, fault.reason, fault.check)

    def _pop_waiting(self) -> list[Slot]:
        """Remove and return the slots of halves and failed batches: they must not wait here until
        the devices are healthy."""
        waiting = [*self._halves, *(batch for batch, _ in self._failed)]
        self._halves.clear()
        self._failed.clear()
        return [slot for batch in waiting for slot in batch]

    def _bisect(self, batch: Sequence[Slot], error: BaseException) -> None:
        """Run both halves of a failed batch again. A batch of one job fails that job."""
        if halves := halves_of(batch):
            self._halves.extend(halves)
            return
        if not is_job_error(error):
            self._streak.add(batch)
        fail_work(batch, error)


def _image_at(wait: Callable[[], ImageArrays], at: int) -> ImageArray:
    image: ImageArray = wait()[at]
    return image
