"""How many devices a worker asks for, and how they share the weights: read, not yet there.

Without JAX, so that a wrong mesh is refused before anything is loaded.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from imagefleet.shared.errors import ConfigurationError

DATA: Final = "data"
"""Axis of slots: along it a batch is split and the weights are repeated."""
MODEL: Final = "model"
"""Axis of weights: along it they are split and a batch is repeated."""


@dataclass(frozen=True, kw_only=True)
class MeshSpec:
    """How many devices, and how they are arranged. What is not known yet is left to the host."""

    devices: int | None
    """None: all there are."""
    model: int = 1
    """Devices that share one copy of the weights."""

    @classmethod
    def read(cls, mesh: str | None, devices: int | None) -> Self:
        """`"data=4,model=2"`, or a number of devices with a copy each.

        Raises:
            ConfigurationError: not a mesh, or one that needs another number of devices.
        """
        if mesh is None:
            return cls(devices=devices)
        found = re.fullmatch(rf"{DATA}=([1-9]\d*)(?:,{MODEL}=([1-9]\d*))?", mesh.replace(" ", ""))
        if found is None:
            raise ConfigurationError(f"IMAGEFLEET_MESH={mesh!r}: write data=8, or data=4,model=2")
        data, model = int(found[1]), int(found[2] or 1)
        if devices not in (None, data * model):
            raise ConfigurationError(
                f"IMAGEFLEET_MESH={mesh!r} takes {data * model} devices, "
                f"but IMAGEFLEET_DEVICES={devices}"
            )
        return cls(devices=data * model, model=model)
