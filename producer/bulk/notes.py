"""Collect what a user should know of an input that can be read, and log it once for each file."""

import logging
from typing import Final

from imagefleet.shared.text.printable import printable

log = logging.getLogger(__name__)

_MAX_SHOWN: Final = 60
_MAX_NOTES: Final = 100


class Notes:
    """Notes about the tables of one input. What was said of one file is not said again of the next.

    Each table calls `warn` at its end.
    """

    def __init__(self, unguided_scale: float = 1.0) -> None:
        """
        Args:
            unguided_scale: The `guidance_scale` at which the model of the input has no guidance.
                Those of other tools are converted by it.
        """
        self.unguided_scale: Final = unguided_scale
        self._new: list[str] = []
        self._left_out: list[str] = []
        self._known: set[str] = set()

    def leave_out(self, name: str, value: object = "") -> None:
        """Note a parameter that has no equal here, with its first value."""
        if self._is_new(name):
            shown = printable(str(value), _MAX_SHOWN)
            self._left_out.append(f"{name}={shown}" if shown else name)

    def say(self, sentence: str, key: str | None = None) -> None:
        """Note a sentence. One of each `key` is enough, or else one of each text."""
        if self._is_new(key or sentence):
            self._new.append(sentence)

    def warn(self, file: str) -> None:
        """Log what is new since the last call."""
        if self._left_out:
            names = ", ".join(self._left_out)
            self._new.append(f"left out, because it has no equal here: {names}")
        for sentence in self._new:
            log.warning("%s: %s", file, sentence)
        self._new, self._left_out = [], []

    def _is_new(self, key: str) -> bool:
        if key in self._known or len(self._known) >= _MAX_NOTES:
            return False
        self._known.add(key)
        return True
