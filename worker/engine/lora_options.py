"""Name the LoRA files that are merged into a model.

The input is the text of the setting, the output records. This module reads no files and needs
neither numpy nor JAX.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from imagefleet.shared.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class LoraOption:
    """A LoRA file that is merged into the weights as they are loaded."""

    name: str
    path: str
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "LoraOption":
        """Parse `name=path` or `name=path:0.8`. Raises ValueError on anything else."""
        name, _, place = text.strip().partition("=")
        path, colon, scale = place.rpartition(":")
        if not colon or "/" in scale or not path:
            path, scale = place, "1"
        with suppress(ValueError):
            if name and path and math.isfinite(float(scale)):
                return cls(name=name, path=path, scale=float(scale))
        raise ValueError(f"{text!r} is no LoRA; write name=path or name=path:scale, as in a=b:0.8")

    @classmethod
    def parse_all(cls, texts: Sequence[str]) -> "tuple[LoraOption, ...]":
        """Parse the setting `lora`. Raises ConfigurationError if one of them is no LoRA."""
        try:
            return tuple(cls.parse(text) for text in texts)
        except ValueError as error:
            raise ConfigurationError(f"IMAGEFLEET_LORA: {error}") from None


@dataclass(frozen=True, kw_only=True)
class AppliedLora:
    """A LoRA that is part of the loaded weights."""

    name: str
    digest: str
    """`sha256:…` of its file."""
    scale: float
