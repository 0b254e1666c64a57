"""Describe the TPU hosts that this engine can be planned for.

Input: the name of a host, such as `v5e-8`. Output: how many devices it has and what one can do. It
needs no JAX and no TPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from imagefleet.shared.errors import ConfigurationError

_GIB: Final = 2**30
_MATRIX_UNIT: Final = 2 * 128 * 128
"""FLOPs that a matrix unit of 128 x 128 cells does in a cycle. Those of v6e have 256 x 256."""


@dataclass(frozen=True, kw_only=True)
class TpuGeneration:
    """It is a generation of TPUs. The figures are those of one JAX device."""

    name: str
    device_kind: str
    """It is the kind of the device, as JAX names it."""
    clock_hz: float
    flops_per_cycle: int
    """It counts FLOPs in bfloat16: two for each cell of each matrix unit."""
    memory_bytes: int
    """The compiler lets a program use this many bytes. It refuses programs that need more."""

    @property
    def flops(self) -> float:
        """Return the peak, in FLOP/s."""
        return self.clock_hz * self.flops_per_cycle


GENERATIONS: Final[Mapping[str, TpuGeneration]] = {
    name: TpuGeneration(
        name=name,
        device_kind=f"TPU {kind}",
        clock_hz=clock_hz,
        flops_per_cycle=matrix_units * _MATRIX_UNIT,
        memory_bytes=int(memory * _GIB),
    )
    for name, kind, clock_hz, matrix_units, memory in (
        ("v2", "v2", 0.7e9, 1, 7.48),
        ("v3", "v3", 0.94e9, 2, 15.48),
        ("v4", "v4", 1.05e9, 8, 30.75),
        ("v5e", "v5 lite", 1.5e9, 4, 15.75),
        ("v5p", "v5", 1.75e9, 8, 95.74),
        ("v6e", "v6 lite", 1.75e9, 16, 31.25),
    )
}
"""It has the generations by name. The two matrix units of v6e count as 16 of 128 x 128 cells."""


@dataclass(frozen=True, kw_only=True)
class TpuHost:
    """It is a TPU host."""

    name: str
    generation: TpuGeneration
    devices: int
    """They are JAX's devices: the cores on v2 and v3, else the chips."""

    @classmethod
    def named(cls, name: str) -> "TpuHost":
        """Return the host of that name.

        Raises:
            ConfigurationError: there is none.
        """
        if name not in TPU_HOSTS:
            raise ConfigurationError(
                f"--topology={name!r} is unknown; choose {', '.join(TPU_HOSTS)}"
            )
        return TPU_HOSTS[name]


TPU_HOSTS: Final[Mapping[str, TpuHost]] = {
    name: TpuHost(name=name, generation=GENERATIONS[name.split("-")[0]], devices=devices)
    for name, devices in (
        ("v2-8", 8),
        ("v3-8", 8),
        ("v4-8", 4),
        ("v5e-1", 1),
        ("v5e-4", 4),
        ("v5e-8", 8),
        ("v5p-8", 4),
        ("v6e-1", 1),
        ("v6e-4", 4),
        ("v6e-8", 8),
    )
}
"""It has the hosts by name. The number in a name counts cores on v2 to v5p and chips on v5e and
v6e, as in the names of Google Cloud."""
