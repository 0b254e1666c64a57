"""Retry what fails while an object store is unavailable."""

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from imagefleet.shared.errors import StorageUnavailable
from imagefleet.shared.process.backoff import backoff_s

log = logging.getLogger(__name__)

_MIN_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 10.0

T = TypeVar("T")


def retry_while_unavailable(act: Callable[[], T], retry_time_s: float, what: str) -> T:
    """Call `act` until the store is available, with exponential, jittered backoff.

    `what` names the action in the log. The devices are not occupied meanwhile.

    Raises:
        StorageUnavailable: the store was not available within `retry_time_s`.
    """
    deadline = time.monotonic() + retry_time_s
    retries = 0
    while True:
        try:
            return act()
        except StorageUnavailable as error:
            pause_s = backoff_s(retries, min_s=_MIN_BACKOFF_S, max_s=_MAX_BACKOFF_S)
            if time.monotonic() + pause_s > deadline:
                raise
            log.warning("%s failed, retry in %.1f s: %s", what, pause_s, error)
            time.sleep(pause_s)
            retries += 1
