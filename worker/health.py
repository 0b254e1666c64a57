"""Are the devices to blame? Asked after every failed batch, by painting a known picture.

Devices that fail it get no work until they paint it again: a sick host must not fail the whole
queue, one batch after the other, faster than any healthy one works. Knows no jobs, no Redis.
"""

import logging
import os
import threading
import time
from typing import Final

from worker.engine.base import Engine, ImageSpec
from worker.exits import Exit

log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_PROMPT: Final = "a known picture"


class Health:
    """Of one engine. Called from the device thread alone."""

    def __init__(self, engine: Engine, quarantine_s: float) -> None:
        self._engine = engine
        self._quarantine_s = quarantine_s

    def well(self) -> bool:
        """Paint the known picture: one step of the program that every batch runs."""
        info = self._engine.info
        spec = ImageSpec(
            prompt=_PROMPT,
            num_inference_steps=1,
            guidance_scale=info.default_guidance_scale,
            scheduler=info.default_scheduler,
        )
        try:
            self._engine.render([spec], info.shapes[0]).pictures()
        except Exception as error:  # whatever a sick runtime says
            log.error("the devices fail a known picture: %s", error)
            return False
        return True

    def recover(self, stopping: threading.Event) -> None:
        """Ask again, with growing pauses, until the devices are well or the worker stops. After
        `quarantine_s` the process ends: whoever starts it again may find other devices."""
        log.critical("quarantined: no work is taken until the devices are well")
        began, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while time.monotonic() - began < self._quarantine_s:
            if stopping.wait(pause_s):
                return
            if self.well():
                log.warning("well again after %.0f s: work is taken", time.monotonic() - began)
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        log.critical("the devices did not recover within %g s", self._quarantine_s)
        logging.shutdown()
        os._exit(Exit.SICK)
