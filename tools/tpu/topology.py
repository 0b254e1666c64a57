"""Make meshes of TPU devices that this machine does not have.

Goes in: the name of a host, such as `v5e-8`. Comes out: its devices, for which libtpu compiles. It
needs libtpu, but no TPU.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from imagefleet.worker.engine.mesh import Placement
from imagefleet.worker.engine.mesh_spec import DATA, MODEL

_ENVIRONMENT: Final = {
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server to wait for
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # otherwise one process of a machine at a time
    # libtpu warns without them. They do not change what is compiled.
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
"""Variables that libtpu reads when it is loaded."""
_MEGACORE: Final = {"chip_config_name": "megacore"}
"""Both cores of a chip are one device, as JAX has it."""
_ONE_CHIP: Final = {"chips_per_host_bounds": (1, 1, 1)}
_TOPOLOGIES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "v2-8": ("v2:2x2", {}),
    "v3-8": ("v3:2x2", {}),
    "v4-8": ("v4:2x2x1", _MEGACORE),
    "v5e-1": ("v5e:1x1", _ONE_CHIP),
    "v5e-4": ("v5e:2x2", {}),
    "v5e-8": ("v5e:2x4", {}),
    "v5p-8": ("v5p:2x2x1", {}),
    "v6e-1": ("v6e:1x1", _ONE_CHIP),
    "v6e-4": ("v6e:2x2", {}),
    "v6e-8": ("v6e:2x4", {}),
}
"""By the name of a host: libtpu's name of its topology, and further arguments of
`get_topology_desc`."""


def placement_of(host: str, devices: int | None = None, model: int = 1) -> Placement:
    """Make a mesh of the first `devices` devices of a host, by default of all."""
    os.environ.update(_ENVIRONMENT)
    topology, options = _TOPOLOGIES[host]
    described = topologies.get_topology_desc(platform="tpu", topology_name=topology, **options)
    chosen = described.devices[:devices]
    return Placement(Mesh(np.array(chosen).reshape(-1, model), (DATA, MODEL)))
