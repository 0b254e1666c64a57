"""The device loop: one batch after the other, as long as there is work.

Goes in: batches of slots, asked for at the moment the devices are free. Comes out: pictures,
delivered to the work they belong to. Fetching a batch's pixels overlaps the next batch. When a
batch fails, the devices are asked first and its prompts second. No Celery, no JAX.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from imagefleet.shared.errors import DeviceError, ImagefleetError
from imagefleet.worker.devices.health import HealthCheck
from imagefleet.worker.devices.work import ImageArray, Slot, work_in
from imagefleet.worker.engine.interface import Engine, Pictures, Rendering
from imagefleet.worker.process.critical_thread import critical_thread

log = logging.getLogger(__name__)

_IN_FLIGHT: Final = 2
"""Batches between the first step and the last pixel: one denoising, one decoding or copied."""
_STREAK: Final = 16
"""Jobs to blame in a row, with no picture in between: then the devices are, whatever they say."""

_SKETCH_EVERY_S: Final = 2.0

Report = Callable[[Sequence[Slot], int], None]
"""A batch and the steps it has done."""
GiveUp = Callable[[Sequence[Slot], Sequence[Slot]], None]
"""The batch that sick devices had in hand, and what waited here to be painted again. Whoever is
told takes both over, and all else that waits for the devices."""


class DeviceLoop:
    """Owns the device thread. `next_batch` may block for a moment; `report` must not."""

    def __init__(
        self,
        engine: Engine,
        next_batch: Callable[[], Sequence[Slot]],
        report: Report,
        poll_s: float,
        health: HealthCheck,
        give_up: GiveUp,
    ) -> None:
        self._engine = engine
        self._next_batch = next_batch
        self._report = report
        self._poll_s = poll_s
        self._stopping = threading.Event()
        self._health = health
        self._give_up = give_up
        self._halves: deque[Sequence[Slot]] = deque()
        self._failed: deque[tuple[Sequence[Slot], BaseException]] = deque()
        self._flying: list[Sequence[Slot]] = []
        self._blamed = 0
        self._beat = 0
        self._sketched_at = -_SKETCH_EVERY_S
        self._changed = threading.Condition()
        self._fetcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fetch")
        self._thread = critical_thread(self._loop, "devices")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no further batch. What is on the devices goes on; see `join`."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for what is on the devices. False if it is still there after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        with self._changed:
            landed = self._changed.wait_for(
                lambda: not self._flying, max(0.0, deadline - time.monotonic())
            )
        return landed and not self._thread.is_alive()

    def beats(self) -> int | None:
        """Counts signs of life of the devices; None while they have nothing to do."""
        return self._beat if self._flying or self._health.painting else None

    def on_devices(self) -> list[Slot]:
        """Between the first step and the last pixel."""
        with self._changed:
            return [slot for batch in self._flying for slot in batch]

    def _loop(self) -> None:
        while self._failed or self._halves or not self._stopping.is_set():
            if self._failed:
                self._examine(*self._failed.popleft())
                continue
            if self._health.doubted and not self._stopping.is_set():
                self._quarantine([])
                continue
            batch = self._halves.popleft() if self._halves else self._next_batch()
            if batch:
                self._take_off(batch)
                self._run(batch)
            else:
                self._stopping.wait(self._poll_s)

    def _run(self, batch: Sequence[Slot]) -> None:
        started = time.monotonic()
        try:
            rendering = self._denoise(batch)
        except Exception as error:  # whatever it was, the batch must end and the loop go on
            self._land(batch, error)
            return
        if all(slot.work.ended for slot in batch):
            self._land(batch, None)
            return
        fetched = self._fetcher.submit(self._fetch, batch, rendering, started)
        fetched.add_done_callback(lambda future: self._land(batch, future.exception()))

    def _denoise(self, batch: Sequence[Slot]) -> Rendering:
        rendering = self._engine.render([slot.spec for slot in batch], batch[0].work.shape)
        self._report(batch, 0)
        dropped: set[int] = set()
        for step in rendering:
            ended = {at for at, slot in enumerate(batch) if slot.work.ended}
            if ended - dropped:
                rendering.drop(sorted(ended - dropped))
                dropped |= ended
            self._sketch(batch, rendering)
            self._report(batch, step)
            self._beat += 1
        return rendering

    def _sketch(self, batch: Sequence[Slot], rendering: Rendering) -> None:
        """Every few seconds, for work that wants to see its first picture grow."""
        wanted = [(at, slot.work) for at, slot in enumerate(batch) if _to_sketch(slot)]
        if wanted and time.monotonic() - self._sketched_at >= _SKETCH_EVERY_S:
            self._sketched_at = time.monotonic()
            wait = rendering.previews()
            for at, work in wanted:
                work.sketch = partial(_one_of, wait, at)

    def _fetch(self, batch: Sequence[Slot], rendering: Rendering, started: float) -> None:
        pictures, flagged = rendering.pictures(), rendering.flagged()
        self._blamed = 0
        spent = time.monotonic() - started
        for work in work_in(batch):
            work.device_s += spent
        for slot, picture, black in zip(batch, pictures, flagged, strict=True):
            slot.work.deliver(slot.index, picture, flagged=black)

    def _take_off(self, batch: Sequence[Slot]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._flying) < _IN_FLIGHT)
            self._flying.append(batch)
            self._beat += 1

    def _land(self, batch: Sequence[Slot], error: BaseException | None) -> None:
        if error is not None:
            log.error("a batch of %d pictures failed: %s", len(batch), error, exc_info=error)
            self._failed.append((batch, error))
        with self._changed:
            self._flying.remove(batch)
            self._beat += 1
            self._changed.notify_all()

    def _examine(self, batch: Sequence[Slot], error: BaseException) -> None:
        """Whose fault was it? Sick devices get nothing more until they have recovered."""
        if _blames_the_job(error) or (self._blamed < _STREAK and self._health.devices_ok()):
            self._isolate(batch, error)
            return
        self._quarantine(batch)

    def _quarantine(self, batch: Sequence[Slot]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._flying)  # what fails there waits here too
        waiting = self._let_go()
        self._give_up(batch, waiting)
        for work in work_in([*batch, *waiting]):
            work.abandon(DeviceError("the devices are sick"))
        self._health.recover(self._stopping)

    def _let_go(self) -> list[Slot]:
        """Halves and failed batches that would wait until the devices are well."""
        waiting = [*self._halves, *(batch for batch, _ in self._failed)]
        self._halves.clear()
        self._failed.clear()
        return [slot for batch in waiting for slot in batch]

    def _isolate(self, batch: Sequence[Slot], error: BaseException) -> None:
        """Halve a failed batch until the culprit is alone; its mates go on without it."""
        mates = work_in(batch)
        if len(mates) > 1:
            first = set(mates[: len(mates) // 2])
            self._halves.append([slot for slot in batch if slot.work in first])
            self._halves.append([slot for slot in batch if slot.work not in first])
            return
        if not _blames_the_job(error):
            self._blamed += 1
        if not isinstance(error, ImagefleetError):
            error = DeviceError(f"{type(error).__name__}: {error}")
        mates[0].abandon(error)


def _blames_the_job(error: BaseException) -> bool:
    return isinstance(error, ImagefleetError) and not isinstance(error, DeviceError)


def _one_of(wait: Callable[[], Pictures], at: int) -> ImageArray:
    picture: ImageArray = wait()[at]
    return picture


def _to_sketch(slot: Slot) -> bool:
    return slot.index == 0 and slot.work.wants_sketch and not slot.work.ended
