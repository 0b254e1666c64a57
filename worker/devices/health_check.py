"""The health check: after a failure it decides whether the job or this worker is to blame.

A failing worker would fail jobs faster than healthy workers can run them, and so empty the queue.
Therefore, before a failure is recorded, the devices generate a known image or the store keeps a
small object. While one of these checks fails, this worker takes no work. The module depends on
neither jobs nor Redis.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from imagefleet.shared.errors import DeviceError
from imagefleet.shared.process.backoff import Jitter, backoff_s
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.engine.contract.interface import (
    KNOWN_PROMPT,
    Engine,
    ImageSpec,
    Shape,
    Stream,
)
from imagefleet.worker.process import metrics
from imagefleet.worker.process.exit_codes import ExitCode

log = logging.getLogger(__name__)

_MIN_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 60.0
_MORE_STEPS: Final = 8
"""A stream fails its check if it has not finished the known image after so many more steps than a
scheduler with two calls of the model in each may need."""


class HealthCheck:
    """Checks the devices and the store of one worker. Only a thread that has the devices, or the
    stream, to itself checks them."""

    def __init__(
        self,
        engine: Engine,
        store: ObjectStore,
        quarantine_s: float,
        streams: Sequence[Stream] = (),
    ) -> None:
        """
        Args:
            streams: The streams of the engine, if it runs streams instead of batches.
        """
        self._streams = streams
        self._engine = engine
        self._store = store
        self._quarantine_s = quarantine_s
        self._lock = threading.Lock()
        self.checking_devices = False
        """Whether the devices are being checked at this moment."""
        self.storage_failed = False
        """It says whether the store failed its last check. Images that cannot be stored should not
        be generated."""
        self.quarantined = False
        """Whether this worker takes no work because devices or store failed."""
        self.steps = 0
        """It counts the steps of whole batches, so that the watchdog sees the devices' progress."""

    def devices_ok(self) -> bool:
        """Return whether the devices generate an image of one step, with the programs that every
        batch, or every stream, uses."""
        self.checking_devices = True
        try:
            if self._streams:
                return all(map(self.stream_ok, self._streams))
            return self._succeeds(
                lambda spec, shape: self._engine.start_batch([spec], shape).images()
            )
        finally:
            self.checking_devices = False

    def stream_ok(self, stream: Stream) -> bool:
        """Return whether the devices of an empty stream generate an image of one step."""
        return self._succeeds(partial(self._generate, stream, 1))

    def whole_batch_ok(self, shape: Shape | None = None, stream: Stream | None = None) -> bool:
        """Return whether the devices, or those of an empty stream, generate as many images of a
        shape as they take, with the steps of a job that names none."""
        self.checking_devices = True
        steps = self._engine.info.default_num_inference_steps
        try:
            if self._streams:
                slots = self._engine.capacity // len(self._streams)
                streams = self._streams if stream is None else [stream]
                checks = [partial(self._generate, each, slots) for each in streams]
                return all(self._succeeds(check, steps, shape) for check in checks)
            return self._succeeds(self._generate_batch, steps, shape)
        finally:
            self.checking_devices = False

    def _succeeds(
        self,
        generate: Callable[[ImageSpec, Shape], object],
        steps: int = 1,
        shape: Shape | None = None,
    ) -> bool:
        info = self._engine.info
        spec = ImageSpec(
            prompt=KNOWN_PROMPT,
            num_inference_steps=steps,
            guidance_scale=info.default_guidance_scale,
            scheduler=info.default_scheduler,
        )
        try:
            generate(spec, shape or info.shapes[0])
        except Exception as error:  # a failing runtime may raise anything
            log.error("the devices fail the health check: %s", error)
            return False
        return True

    def storage_ok(self) -> bool:
        """Return whether the store works. After a failure it is not asked again until `recover`."""
        with self._lock:
            if not self.storage_failed:
                try:
                    self._store.check()
                except Exception as error:
                    log.error("the store fails the health check: %s", error)
                    self.storage_failed = True
            return not self.storage_failed

    def recover(
        self, stopping: threading.Event, reason: str, check: Callable[[], bool] | None = None
    ) -> None:
        """Check again, with backoff, until devices and store are healthy or the worker stops.

        After `quarantine_s` the process ends: if it is started again, it may get other devices.

        Args:
            reason: says what failed.
            check: returns whether the devices are healthy; by default `devices_ok`.
        """
        devices_ok = check or self.devices_ok
        log.critical("quarantined, so that it takes no work until it is healthy: %s", reason)
        metrics.QUARANTINES.inc()
        self.quarantined = True
        started, retries = time.monotonic(), 0
        while time.monotonic() - started < self._quarantine_s:
            pause_s = backoff_s(
                retries, min_s=_MIN_BACKOFF_S, max_s=_MAX_BACKOFF_S, jitter=Jitter.NONE
            )
            if stopping.wait(pause_s):
                return
            self.storage_failed = False
            if devices_ok() and self.storage_ok():
                quarantined_s = time.monotonic() - started
                log.warning("healthy again after %.0f s: this worker takes work", quarantined_s)
                self.quarantined = False
                return
            retries += 1
        log.critical("still failing after %g s: this worker ends", self._quarantine_s)
        logging.shutdown()
        os._exit(ExitCode.UNAVAILABLE)

    def _generate(self, stream: Stream, slots: int, spec: ImageSpec, shape: Shape) -> None:
        stream.reset()
        for slot in range(slots):
            stream.start(slot, spec, shape)
        most = 2 * spec.steps + _MORE_STEPS
        for _ in range(most):
            if finished := stream.step():
                break
            self.steps += 1
        else:
            raise DeviceError(f"no image of {spec.steps} steps ended after {most} steps")
        for slot in finished:
            stream.finish(slot)()

    def _generate_batch(self, spec: ImageSpec, shape: Shape) -> None:
        running = self._engine.start_batch([spec] * self._engine.capacity, shape)
        for _ in running:
            self.steps += 1
        running.images()
