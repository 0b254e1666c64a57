"""Name the ControlNets that jobs may use.

Input: the text of a setting. Output: records. This module reads no files and needs neither numpy
nor JAX.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from imagefleet.shared.jobs.model import check_name
from imagefleet.worker.engine.options.parse_options import parse_options

CONTROL_NET_CONFIG: Final = "config.json"


@dataclass(frozen=True, kw_only=True)
class ControlNetOption:
    """It is a ControlNet that is read beside the weights of the model."""

    name: str
    """Jobs choose the net by this name."""
    path: str
    """It is a folder in diffusers format, with `config.json`."""

    @property
    def folder(self) -> Path:
        """Return the absolute path."""
        return Path(self.path).expanduser().absolute()

    @classmethod
    def parse(cls, text: str) -> "ControlNetOption":
        """Parse `name=path`. Raises ValueError on anything else."""
        name, equals, path = text.strip().partition("=")
        if not equals or not path:
            raise ValueError(f"{text!r} is no ControlNet; write name=folder, as in canny=/nets/a")
        try:
            check_name(name)
        except ValueError as error:
            raise ValueError(f"the name {name!r} {error}") from None
        return cls(name=name, path=path)

    @classmethod
    def parse_all(cls, texts: Sequence[str]) -> "tuple[ControlNetOption, ...]":
        """Parse the setting `controlnet`.

        Raises:
            ConfigurationError: one of them is not `name=path`, or two have the same name.
        """
        return parse_options(texts, cls.parse, setting="IMAGEFLEET_CONTROLNET", unique="name")
