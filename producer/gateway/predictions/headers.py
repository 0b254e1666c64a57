"""Read the headers that say how long a client waits, and when its prediction is canceled.

`Prefer: wait=10` is that of RFC 7240, `Cancel-After: 1m30s` that of Replicate:
https://replicate.com/docs/topics/predictions/lifecycle.
"""

import re
from collections.abc import Mapping
from typing import Final

from imagefleet.producer.gateway.problems import wrong_field

_WAIT: Final = re.compile(r"wait(?:\s*=\s*\"?([^\"]*)\"?)?", re.IGNORECASE)
MAX_WAIT_S: Final = 60
_SECONDS: Final = re.compile(r"[1-9][0-9]?")
_DURATION: Final = re.compile(r"(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,7})s?)?")
_MAX_CANCEL_AFTER_S: Final = 7 * 24 * 3_600


def wait_s(headers: Mapping[str, str]) -> int:
    """Return for how many seconds the client wants to wait for the end; 0: not at all.

    Raises Problem.
    """
    preferences = [each.partition(";")[0].strip() for each in headers.get("prefer", "").split(",")]
    for preference in preferences:
        found = _WAIT.fullmatch(preference)
        if found is None:
            continue
        text = str(MAX_WAIT_S) if found[1] is None else found[1].strip()
        if not _SECONDS.fullmatch(text) or int(text) > MAX_WAIT_S:
            raise wrong_field("Prefer", preference, f"must be wait=1 to wait={MAX_WAIT_S}")
        return int(text)
    return 0


def cancel_after_s(headers: Mapping[str, str]) -> int | None:
    """Return after how many seconds the prediction is canceled; None: it is not.

    Raises Problem.
    """
    text = headers.get("cancel-after")
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip())
    hours, minutes, seconds = (int(each or 0) for each in found.groups()) if found else (0, 0, 0)
    total = 3_600 * hours + 60 * minutes + seconds
    if not 1 <= total <= _MAX_CANCEL_AFTER_S:
        limit = f"must be 1s to {_MAX_CANCEL_AFTER_S // 3_600}h, as in 30s, 90 or 1h30m"
        raise wrong_field("Cancel-After", text, limit)
    return total
