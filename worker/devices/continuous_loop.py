"""The device loop of continuous batching: slots are filled and freed between steps.

One thread claims slots as places come free; each stream of the engine has a thread that runs it.
When a stream fails, the health check decides whether its devices or its jobs are to blame. The loop
depends on neither Celery nor JAX.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from imagefleet.worker.devices.device_loop import OnDevicesFailed
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
from imagefleet.worker.devices.prefetch_timer import PrefetchTimer
from imagefleet.worker.devices.shared_slots import SharedSlots
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.devices.stream_metrics import StreamMetrics
from imagefleet.worker.devices.stream_runner import OnSteps, StreamRunner
from imagefleet.worker.engine.contract.interface import Shape, Stream
from imagefleet.worker.process.critical_thread import critical_thread

log = logging.getLogger(__name__)

_FREE_SLOTS_TIMEOUT_S: Final = 0.5
"""How often the claiming thread looks at the store's health while all slots are taken."""
_MIN_LEAD_STEPS: Final = 1.0

NextSlots = Callable[[int, Shape | None], Sequence[Slot]]
"""Claims up to this many slots of one shape, and prefers the given shape. It may block a moment."""


class ContinuousLoop:
    """Runs the streams of an engine. It has the methods of `DeviceLoop`."""

    def __init__(
        self,
        streams: Sequence[Stream],
        slots: int,
        next_slots: NextSlots,
        on_steps: OnSteps,
        poll_s: float,
        health: HealthCheck,
        on_devices_failed: OnDevicesFailed,
        streak: FailureStreak | None = None,
    ) -> None:
        """
        Args:
            streams: The streams of the engine.
            slots: Slots of each stream.
            next_slots: See `NextSlots`.
            on_steps: See `OnSteps`; it must not block.
            poll_s: Seconds between two claims while there is no work.
            health: Checks devices and store.
            on_devices_failed: See `OnDevicesFailed`.
            streak: The failures in a row.
        """
        self._next_slots = next_slots
        self._poll_s = poll_s
        self._health = health
        self._on_devices_failed = on_devices_failed
        self._shared_slots = SharedSlots(len(streams), slots)
        self._metrics = StreamMetrics()
        self._streak = streak or FailureStreak()
        self._runners = [
            StreamRunner(
                index,
                stream,
                self._shared_slots,
                on_steps,
                self._blame,
                self._streak.end,
                self._metrics,
            )
            for index, stream in enumerate(streams)
        ]
        self._lead = PrefetchTimer()
        self._stopping = threading.Event()
        self._threads = [critical_thread(self._claim_loop, "claims")]
        self._threads += [
            critical_thread(partial(self._stream_loop, index), f"stream-{index}")
            for index in range(len(streams))
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Claim no further slots. Those on the devices continue; see `join`."""
        self._stopping.set()
        self._shared_slots.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the slots on the devices. Return False if any is left after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def progress_counts(self) -> list[int | None]:
        """Return for each stream a number that grows while it makes progress; None if idle."""
        checking, steps = self._health.checking_devices, self._health.steps
        counts = [
            self._shared_slots.progress_count(index, checking=checking)
            for index in range(len(self._runners))
        ]
        return [None if count is None else count + steps for count in counts]

    def on_devices(self, stream: int | None = None) -> list[Slot]:
        """Return the slots between the first step and the last pixel, of one or of all streams."""
        return self._shared_slots.on_devices(stream)

    def pop_waiting(self) -> list[Slot]:
        """Remove and return the claimed slots that have not reached the devices."""
        return self._shared_slots.pop_waiting()

    def _claim_loop(self) -> None:
        while not self._stopping.is_set():
            if self._health.storage_failed:
                self._quarantine(None, [], STORE_FAILED)
                continue
            claimable = self._shared_slots.wait_for_free_slots(
                self._lead_steps(), _FREE_SLOTS_TIMEOUT_S
            )
            if claimable is None:
                continue
            started = time.monotonic()
            slots = self._next_slots(*claimable)
            self._shared_slots.add(slots)
            if slots:
                self._lead.record_preparation(time.monotonic() - started)
            else:
                self._metrics.set_busy(not self._shared_slots.is_idle())
                self._stopping.wait(self._poll_s)

    def _lead_steps(self) -> float:
        """Return how many steps before a slot comes free the next job should be claimed."""
        step_s = min((each.step_s for each in self._runners if each.step_s), default=0.0)
        return max(_MIN_LEAD_STEPS, self._lead.lead_s / step_s if step_s else 0.0)

    def _stream_loop(self, index: int) -> None:
        runner = self._runners[index]
        while (newcomers := self._shared_slots.wait_for_work(index)) is not None:
            if self._shared_slots.running(index):
                runner.advance(newcomers)
            elif failed := self._shared_slots.pop_failed(index):
                self._judge(index, failed)

    def _judge(self, index: int, slots: Sequence[Slot]) -> None:
        """Bisect failed slots if a job of them is to blame; quarantine the worker if the devices
        are. The stream is empty."""
        runner = self._runners[index]
        runner.stream.reset()
        error = runner.error
        log_failure(slots, error, traceback=False)
        shape = slots[0].work.shape
        fault = find_host_fault(error, shape, self._streak, self._health, stream=runner.stream)
        if fault is None:
            self._bisect(slots, error)
        else:
            self._quarantine(index, slots, fault)

    def _bisect(self, slots: Sequence[Slot], error: BaseException) -> None:
        """Run both halves of the failed slots again. Slots of one job fail that job."""
        halves = halves_of(slots)
        if halves is None:
            self._blame(slots, error)
            return
        for half in halves:
            self._shared_slots.retry(half)

    def _blame(self, slots: Sequence[Slot], error: BaseException) -> None:
        """Fail the job of `slots`."""
        if not is_job_error(error):
            self._streak.add(slots)
        fail_work(slots, error)

    def _quarantine(self, index: int | None, slots: Sequence[Slot], fault: HostFault) -> None:
        waiting = self._shared_slots.begin_quarantine(index)
        if waiting is None:
            self._shared_slots.add_failed(index or 0, slots)
            self._stopping.wait(self._poll_s)
            return
        try:
            self._metrics.set_busy(False)
            self._on_devices_failed(slots, waiting, fault.reason)
            abandon_for_quarantine([*slots, *waiting])
            self._health.recover(self._stopping, fault.reason, fault.check)
        finally:
            self._shared_slots.end_quarantine()
