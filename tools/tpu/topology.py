"""Describe TPU hosts, and make meshes of devices that this machine does not have.

Goes in: the name of a host, such as `v5e-8`. Comes out: its devices, for which libtpu compiles, and
what a device can do. It needs libtpu, but no TPU.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from imagefleet.worker.engine.mesh import Placement
from imagefleet.worker.engine.mesh_spec import DATA, MODEL

_GIB: Final = 2**30
_ENVIRONMENT: Final = {
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server to wait for
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # otherwise one process of a machine at a time
    # libtpu warns without them. They do not change what is compiled.
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
"""Variables that libtpu reads when it is loaded."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A generation of TPUs. The figures are those of one JAX device."""

    clock_hz: float
    flops_per_cycle: int
    """In bfloat16: two for each cell of each matrix unit."""
    memory_bytes: int
    """What the compiler lets a program use. It refuses programs that need more."""
    softmax_cycles: float
    """Cycles that the attention kernel takes for each score beside its two products: the compiler's
    schedule of a layer with 4096 pixels and heads of 40, less the products at the peak."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `get_topology_desc`."""


_MATRIX_UNIT: Final = 2 * 128 * 128
"""FLOPs that a matrix unit of 128 x 128 cells does in a cycle. Those of v6e have 256 x 256."""

GENERATIONS: Final[Mapping[str, Generation]] = {
    "v2": Generation(
        clock_hz=0.7e9,
        flops_per_cycle=_MATRIX_UNIT,
        memory_bytes=int(7.48 * _GIB),
        softmax_cycles=0.0,
    ),
    "v3": Generation(
        clock_hz=0.94e9,
        flops_per_cycle=2 * _MATRIX_UNIT,
        memory_bytes=int(15.48 * _GIB),
        softmax_cycles=0.0026,
    ),
    "v4": Generation(
        clock_hz=1.05e9,
        flops_per_cycle=8 * _MATRIX_UNIT,
        memory_bytes=int(30.75 * _GIB),
        softmax_cycles=0.002,
        options={"chip_config_name": "megacore"},  # both cores are one device, as JAX has it
    ),
    "v5e": Generation(
        clock_hz=1.5e9,
        flops_per_cycle=4 * _MATRIX_UNIT,
        memory_bytes=int(15.75 * _GIB),
        softmax_cycles=0.0015,
    ),
    "v5p": Generation(
        clock_hz=1.75e9,
        flops_per_cycle=8 * _MATRIX_UNIT,
        memory_bytes=int(95.74 * _GIB),
        softmax_cycles=0.0009,
    ),
    "v6e": Generation(
        clock_hz=1.75e9,
        flops_per_cycle=4 * 4 * _MATRIX_UNIT,
        memory_bytes=int(31.25 * _GIB),
        softmax_cycles=0.0026,
    ),
}

_ONE_CHIP: Final = {"chips_per_host_bounds": (1, 1, 1)}
_HOSTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "v2-8": ("v2:2x2", {}),
    "v3-8": ("v3:2x2", {}),
    "v4-8": ("v4:2x2x1", {}),
    "v5e-1": ("v5e:1x1", _ONE_CHIP),
    "v5e-4": ("v5e:2x2", {}),
    "v5e-8": ("v5e:2x4", {}),
    "v5p-8": ("v5p:2x2x1", {}),
    "v6e-1": ("v6e:1x1", _ONE_CHIP),
    "v6e-4": ("v6e:2x2", {}),
    "v6e-8": ("v6e:2x4", {}),
}
"""By the name of a host: libtpu's name of its topology, and further arguments. The number counts
cores on v2 to v5p and chips on v5e and v6e, as in the names of Google Cloud. JAX's devices are
the cores on v2 and v3, else the chips."""
HOSTS: Final = tuple(_HOSTS)


@dataclass(frozen=True)
class Host:
    """A TPU host that is not here."""

    name: str

    @property
    def generation(self) -> Generation:
        """Return what its devices can do."""
        return GENERATIONS[self.name.split("-")[0]]

    def placement(self, devices: int | None = None, model: int = 1) -> Placement:
        """Make a mesh of its first `devices` devices, by default of all."""
        os.environ.update(_ENVIRONMENT)
        topology, options = _HOSTS[self.name]
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=topology, **options, **self.generation.options
        )
        chosen = described.devices[:devices]
        return Placement(Mesh(np.array(chosen).reshape(-1, model), (DATA, MODEL)))
