"""Who is to blame, the job or this worker? Asked after a failure, before anything is recorded.

A worker that fails every job fails the whole queue, faster than any healthy one works. So the
devices are asked for a known picture and the store for a small object; while one of them fails,
this worker takes no work. Knows no jobs, no Redis.
"""

import logging
import os
import threading
import time
from typing import Final

from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.engine.interface import Engine, ImageSpec
from imagefleet.worker.process.exit_codes import ExitCode

log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_PROMPT: Final = "a known picture"


class HealthCheck:
    """Of one worker. The engine is asked from the device thread alone."""

    def __init__(self, engine: Engine, store: ObjectStore, quarantine_s: float) -> None:
        self._engine = engine
        self._store = store
        self._quarantine_s = quarantine_s
        self._lock = threading.Lock()
        self.painting = False
        """Whether the devices are being asked."""
        self.doubted = False
        """Whether the store failed: nothing should be painted that cannot be kept."""

    def devices_ok(self) -> bool:
        """Ask the devices: one step of the program that every batch runs."""
        info = self._engine.info
        spec = ImageSpec(
            prompt=_PROMPT,
            num_inference_steps=1,
            guidance_scale=info.default_guidance_scale,
            scheduler=info.default_scheduler,
        )
        self.painting = True
        try:
            self._engine.render([spec], info.shapes[0]).pictures()
        except Exception as error:  # whatever a sick runtime says
            log.error("the devices fail a known picture: %s", error)
            return False
        finally:
            self.painting = False
        return True

    def storage_ok(self) -> bool:
        """Ask the store. If it fails, it is doubted until `recover`."""
        with self._lock:
            if not self.doubted:
                try:
                    self._store.check()
                except Exception as error:
                    log.error("the store fails: %s", error)
                    self.doubted = True
            return not self.doubted

    def recover(self, stopping: threading.Event) -> None:
        """Ask again, with growing pauses, until all is well or the worker stops. After
        `quarantine_s` the process ends: whoever starts it again may find other devices."""
        log.critical("quarantined: no work is taken until devices and store are well")
        began, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while time.monotonic() - began < self._quarantine_s:
            if stopping.wait(pause_s):
                return
            self.doubted = False
            if self.devices_ok() and self.storage_ok():
                log.warning("well again after %.0f s: work is taken", time.monotonic() - began)
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        log.critical("not well within %g s: this worker ends", self._quarantine_s)
        logging.shutdown()
        os._exit(ExitCode.UNAVAILABLE)
