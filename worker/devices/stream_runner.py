"""Run one stream of the devices: newcomers enter, all slots take a step, finished images leave.

Slots come from `SharedSlots`; images are delivered to the work that they belong to. Decoding and
copying an image overlap the next steps. The runner records failed slots in `SharedSlots`; the loop
runs the health check. It depends on neither Celery nor JAX.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from imagefleet.shared.errors import DeviceError
from imagefleet.worker.devices.shared_slots import SharedSlots
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.devices.stream_metrics import StreamMetrics
from imagefleet.worker.engine.contract.interface import (
    FinishedImage,
    ImageArray,
    ImageArrays,
    Stream,
)
from imagefleet.worker.process import metrics

log = logging.getLogger(__name__)

_PREVIEW_INTERVAL_S: Final = 2.0

OnSteps = Callable[[Mapping[Slot, int]], None]
"""It is called after each step of a stream, with the steps done by all slots on the devices."""
OnError = Callable[[Sequence[Slot], BaseException], None]
"""It is called with the slots that an error ended. `SharedSlots` has them, too, unless their job is
to blame."""


class StreamRunner:
    """One thread calls `advance`."""

    def __init__(
        self,
        index: int,
        stream: Stream,
        shared_slots: SharedSlots,
        on_steps: OnSteps,
        on_refused: OnError,
        on_delivered: Callable[[], None],
        stream_metrics: StreamMetrics,
    ) -> None:
        """
        Args:
            index: The number of the stream.
            stream: The stream itself.
            shared_slots: The slots of all streams.
            on_steps: See `OnSteps`.
            on_refused: Called with a slot that the engine refused to start.
            on_delivered: Called after each image.
            stream_metrics: Counts steps and busy time.
        """
        self.stream: Final = stream
        self.error: BaseException = DeviceError("nothing failed")
        """It is the latest failure."""
        self.step_s = 0.0
        """The latest step took this many seconds; 0 before the first one."""
        self._index, self._shared_slots = index, shared_slots
        self._on_steps, self._on_refused, self._on_delivered = on_steps, on_refused, on_delivered
        self._metrics = stream_metrics
        self._started_at: dict[Slot, float] = {}
        self._stepped_at = 0.0
        self._previewed_at = -_PREVIEW_INTERVAL_S
        self._fetcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"fetch-{index}")

    def advance(self, newcomers: Mapping[int, Slot]) -> None:
        """Start the newcomers, take a step, and let finished and unwanted images leave.

        After a failure all running slots are recorded as failed, to be judged.
        """
        try:
            for number, slot in newcomers.items():
                self._start(number, slot)
            if self._shared_slots.running(self._index):
                self._step()
            self._drop_ended()  # last, so that newcomers take these slots before the next step
        except Exception as error:  # after any error the slots must end and the stream continue
            self._note_failure(error)
            self._started_at.clear()
            self._shared_slots.fail_running(self._index)

    def _start(self, number: int, slot: Slot) -> None:
        try:
            self.stream.start(number, slot.spec, slot.work.shape)
        except DeviceError:
            raise
        except Exception as error:  # the engine refuses the image; its neighbours are not affected
            self._shared_slots.drop(self._index, number)
            self._on_refused([slot], error)
            return
        self._started_at[slot] = time.monotonic()
        self._metrics.started(slot)

    def _drop_ended(self) -> None:
        for number, slot in self._shared_slots.running(self._index).items():
            if slot.work.ended:
                self.stream.drop(number)
                self._started_at.pop(slot, None)
                self._shared_slots.drop(self._index, number)

    def _step(self) -> None:
        slots = self._shared_slots.running(self._index)
        finished = self.stream.step()
        self._measure(next(iter(slots.values())))
        done = {slot: self.stream.steps_done(number) for number, slot in slots.items()}
        snapshot = self._shared_slots.stepped(self._index, done)
        self._start_previews(slots)
        for number in finished:
            self._finish(number, slots[number])
        self._on_steps(snapshot)

    def _finish(self, number: int, slot: Slot) -> None:
        self._shared_slots.wait_to_decode(self._index)
        wait = self.stream.finish(number)
        self._shared_slots.begin_decoding(self._index, number)
        self._fetcher.submit(self._fetch, slot, wait, self._started_at.pop(slot))

    def _fetch(self, slot: Slot, wait: Callable[[], FinishedImage], started_at: float) -> None:
        """Deliver an image. A failure concerns this slot alone."""
        failed = False
        try:
            image = wait()
            metrics.IMAGES.inc(not slot.work.ended)
            slot.work.device_s = max(slot.work.device_s, time.monotonic() - started_at)
            slot.work.deliver(slot.index, image.pixels, flagged=image.flagged)
            self._on_delivered()
        except Exception as error:  # the slot must be released after any error
            self._note_failure(error)
            failed = True
        self._shared_slots.end_decoding(self._index, slot, failed=failed)

    def _note_failure(self, error: Exception) -> None:
        log.error("stream %d failed: %s", self._index, error, exc_info=error)
        metrics.BATCH_FAILURES.inc()
        self.error = error

    def _measure(self, slot: Slot) -> None:
        """Measure the time since the last step, unless the stream was idle in between."""
        now = time.monotonic()
        if self._stepped_at > min(self._started_at.values(), default=now):
            self.step_s = now - self._stepped_at
            self._metrics.stepped(slot, self.step_s)
        self._stepped_at = now

    def _start_previews(self, slots: Mapping[int, Slot]) -> None:
        """Start previews for the work that wants them, every `_PREVIEW_INTERVAL_S`."""
        wanted = {number: slot.work for number, slot in slots.items() if slot.wants_preview}
        if wanted and time.monotonic() - self._previewed_at >= _PREVIEW_INTERVAL_S:
            self._previewed_at = time.monotonic()
            wait = self.stream.previews()
            for number, work in wanted.items():
                work.fetch_preview = partial(_image_at, wait, number)


def _image_at(wait: Callable[[], ImageArrays], at: int) -> ImageArray:
    image: ImageArray = wait()[at]
    return image
