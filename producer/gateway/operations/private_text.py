"""Take out of errors what belongs to the tenants whose jobs have failed.

Errors quote the values that they complain about, as a prompt or the address of an image. Operators
see the fleet, and no prompts or images of tenants; who may read everything has the command line.
Input: texts. This module depends on nothing of the gateway.
"""

import re
from collections.abc import Iterable
from typing import Final

from imagefleet.shared.jobs.model import MAX_ERROR_CHARACTERS
from imagefleet.shared.text.printable import printable

_QUOTED: Final = re.compile(r"(?<!\w)(['\"`])(?:\\.|(?!\1).)*(?:\1|$)", re.DOTALL)
"""A value as Python's `repr` writes it, also one that is cut before its end."""
_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+]{1,9}://[^/\s?#]+)[^\s]*", re.IGNORECASE)
_LEFT_OUT: Final = "…"
_SHORTEST: Final = 8
"""A shorter text may stand in an error by chance."""


def without_private(text: str, private: Iterable[str | None] = ()) -> str:
    """Return an error without quoted values, and addresses without what follows their host.

    Args:
        private: texts that it may hold without quotes, as the prompt of its job.
    """
    for each in sorted((each for each in private if each), key=len, reverse=True):
        if len(each) >= _SHORTEST:
            text = text.replace(each, _LEFT_OUT)
    shown = _ADDRESS.sub(rf"\1/{_LEFT_OUT}", _QUOTED.sub(_LEFT_OUT, text))
    return printable(shown, MAX_ERROR_CHARACTERS)
