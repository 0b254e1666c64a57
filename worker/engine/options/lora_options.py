"""Name LoRA files: those that are merged into a model, and those that jobs may use.

Input: the text of a setting. Output: records. This module reads no files and needs neither numpy
nor JAX.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from imagefleet.shared.jobs.model import check_name
from imagefleet.worker.engine.options.parse_options import parse_options


@dataclass(frozen=True, kw_only=True)
class LoraOption:
    """It is a LoRA file that is read as the weights are loaded."""

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
        return parse_options(texts, cls.parse, setting="IMAGEFLEET_LORA")

    @classmethod
    def parse_job_loras(cls, texts: Sequence[str]) -> "tuple[LoraOption, ...]":
        """Parse the setting `job_lora`.

        Raises:
            ConfigurationError: one of them is not `name=path`, or two have the same name.
        """
        return parse_options(
            texts, cls._parse_job_lora, setting="IMAGEFLEET_JOB_LORA", unique="name"
        )

    @classmethod
    def _parse_job_lora(cls, text: str) -> "LoraOption":
        name, equals, path = text.strip().partition("=")
        if not equals or not path:
            raise ValueError(f"{text!r} is no LoRA; write name=path, as in style=/loras/a")
        if cls.parse(text).scale != 1:
            raise ValueError(f"{text!r} has a scale; write name=path, since each job gives its own")
        try:
            check_name(name)
        except ValueError as error:
            raise ValueError(f"the name {name!r} {error}") from None
        return cls(name=name, path=path)


@dataclass(frozen=True, kw_only=True)
class AppliedLora:
    """It is a LoRA that is part of the loaded weights, or that a job used."""

    name: str
    digest: str
    """It is `sha256:…` of the LoRA's file."""
    scale: float


@dataclass(frozen=True, kw_only=True)
class JobLora:
    """It is a LoRA that jobs may use."""

    name: str
    digest: str
    """It is `sha256:…` of the LoRA's file."""
