"""Trying again what a store may do later."""

import logging
import time
from collections.abc import Callable
from random import uniform
from typing import Final, TypeVar

from imagefleet.shared.errors import StorageUnavailable

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S: Final = 10.0

T = TypeVar("T")


def retry_while_unavailable(act: Callable[[], T], patience_s: float, what: str) -> T:
    """Do `act` until the store can, with growing, jittered pauses. What it stores stays here
    meanwhile: the devices have nothing to do with it.

    Raises:
        StorageUnavailable: not within `patience_s`.
    """
    deadline = time.monotonic() + patience_s
    pause_s = 0.1
    while True:
        try:
            return act()
        except StorageUnavailable as error:
            if time.monotonic() + pause_s > deadline:
                raise
            log.warning("%s failed, again in %.1f s: %s", what, pause_s, error)
            time.sleep(uniform(0.5, 1.0) * pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
