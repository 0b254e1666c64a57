"""Mask secrets in the statistics that Celery's remote control shows.

Input: a worker of Celery. Output: its `stats`, without secrets. Celery removes the password of the
broker only where it has a field of its own: not in the addresses of Sentinels and Unix sockets, nor
in the options of the transport.
"""

import re
from typing import Any, Final

from imagefleet.shared.text.printable import mask_url

_SECRET: Final = re.compile(r"passw|secret|token|credential", re.IGNORECASE)


def mask_stats(worker: Any) -> None:
    """Let the method `stats` of `worker` return no secret."""
    stats = worker.stats
    worker.stats = lambda: mask_secrets(stats())


def mask_secrets(value: Any) -> Any:
    """Return `value` with the credentials in its texts, and its fields for secrets, masked."""
    if isinstance(value, dict):
        return {
            name: "***" if each and _SECRET.search(str(name)) else mask_secrets(each)
            for name, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [mask_secrets(each) for each in value]
    return mask_url(value) if isinstance(value, str) else value
