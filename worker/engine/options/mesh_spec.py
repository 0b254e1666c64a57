"""Parse the setting that says how many devices a worker uses and how they share the weights.

It needs no JAX, so that a wrong mesh is rejected before anything is loaded.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.text.printable import counted

DATA: Final = "data"
"""The axis of slots: a batch is split along it, the weights are replicated."""
MODEL: Final = "model"
"""The axis of weights: they are split along it, a batch is replicated."""
MAX_PER_DEVICE_BATCH: Final = 256
"""One copy of the weights may denoise at most this many images at a time."""


@dataclass(frozen=True, kw_only=True)
class MeshSpec:
    """The mesh spec says how many devices a worker uses and how they are arranged."""

    devices: int | None
    """None means that all devices of the host are used."""
    model: int = 1
    """The number of devices that share one copy of the weights."""

    @classmethod
    def parse(cls, mesh: str | None, devices: int | None) -> Self:
        """Parse `"data=4,model=2"`. Without a mesh, each device has its own copy of the weights.

        Raises:
            ConfigurationError: `mesh` is malformed or contradicts `devices`.
        """
        if mesh is None:
            return cls(devices=devices)
        match = re.fullmatch(rf"{DATA}=([1-9]\d*)(?:,{MODEL}=([1-9]\d*))?", mesh.replace(" ", ""))
        if match is None:
            raise ConfigurationError(f"IMAGEFLEET_MESH={mesh!r}: write data=8, or data=4,model=2")
        data, model = int(match[1]), int(match[2] or 1)
        if devices not in (None, data * model):
            raise ConfigurationError(
                f"IMAGEFLEET_MESH={mesh!r} takes {counted(data * model, 'device')}, "
                f"but IMAGEFLEET_DEVICES={devices}; unset one of them"
            )
        return cls(devices=data * model, model=model)
