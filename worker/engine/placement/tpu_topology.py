"""Make meshes of TPU devices that this machine does not have.

Input: the name of a host, such as `v5e-8`. Output: its devices, for which libtpu compiles. It needs
libtpu, but no TPU.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

import jax
from jax.experimental import topologies

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.process.extras import how_to_install
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.placement.tpu_hosts import TpuHost

_ENVIRONMENT: Final = {
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server to wait for
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # otherwise one process of a machine at a time
    # libtpu warns without them. They do not change what is compiled.
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
"""libtpu reads these variables when it is loaded."""
_OPTIONS: Final = "LIBTPU_INIT_ARGS"
_BARRIER: Final = "--xla_tpu_use_enhanced_launch_barrier"
"""JAX sets this option of libtpu on TPU hosts, and only there, unless the variable has it."""
_MEGACORE: Final = {"chip_config_name": "megacore"}
"""Both cores of a chip are one device, as JAX has it."""
_ONE_CHIP: Final = {"chips_per_host_bounds": (1, 1, 1)}
_EIGHT_CHIPS: Final = {"chips_per_host_bounds": (2, 4, 1)}
"""Without it, libtpu describes two hosts of four chips."""
_TOPOLOGIES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "v2-8": ("v2:2x2", {}),
    "v3-8": ("v3:2x2", {}),
    "v4-8": ("v4:2x2x1", _MEGACORE),
    "v5e-1": ("v5e:1x1", _ONE_CHIP),
    "v5e-4": ("v5e:2x2", {}),
    "v5e-8": ("v5e:2x4", _EIGHT_CHIPS),
    "v5p-8": ("v5p:2x2x1", {}),
    "v6e-1": ("v6e:1x1", _ONE_CHIP),
    "v6e-4": ("v6e:2x2", {}),
    "v6e-8": ("v6e:2x4", _EIGHT_CHIPS),
}
"""By the name of a host, it has libtpu's name of its topology, and further arguments of
`get_topology_desc`."""


def libtpu_variables(options: str) -> dict[str, str]:
    """Return the environment variables for libtpu, given the `LIBTPU_INIT_ARGS` of this process."""
    added = "" if _BARRIER in options else f" {_BARRIER}=true"
    return {**_ENVIRONMENT, _OPTIONS: options + added}


def placement_of(host: str, devices: int | None = None, model: int = 1) -> Placement:
    """Make a mesh of the first `devices` devices of a host, by default of all.

    JAX uses only the CPU in this process from now on.

    Raises:
        ConfigurationError: libtpu is not installed, there is no such host, it has fewer devices, or
            `model` does not divide their number.
    """
    name = TpuHost.named(host).name
    if find_spec("libtpu") is None:
        raise ConfigurationError(
            f"--topology={host!r} needs the TPU compiler, libtpu, which is not installed: "
            f"{how_to_install('tpu')}"
        )
    os.environ.update(libtpu_variables(os.environ.get(_OPTIONS, "")))
    # Where libtpu is installed, JAX would look for a TPU.
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    topology, arguments = _TOPOLOGIES[name]
    described = topologies.get_topology_desc(platform="tpu", topology_name=topology, **arguments)
    return Placement.over(described.devices, devices, model)
