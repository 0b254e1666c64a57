"""Which devices, and what lies where on them.

Goes in: how many devices to use. Comes out: a mesh and the two placements everything has: weights
on every device, slots split between devices.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from shared.errors import ConfigurationError

T = TypeVar("T")

DATA: Final = "data"
"""Axis of slots. A second axis, for weights too large for one device, will stand beside it."""
VIRTUAL_CPU_DEVICES: Final = 8


def start_backend(devices: int | None) -> None:
    """Start JAX on this host; a CPU then has `devices` virtual ones, 8 by default.

    Other platforms keep the devices they have. Once the backend runs, this does nothing, and
    `Placement.of` says if there are too few. XLA_FLAGS that name a number win.
    """
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with suppress(RuntimeError):  # it runs already
            jax.config.update(  # type: ignore[no-untyped-call]
                "jax_num_cpu_devices", devices or VIRTUAL_CPU_DEVICES
            )
    jax.local_devices()


@dataclass(frozen=True)
class Placement:
    """A mesh and how arrays lie on it."""

    mesh: Mesh

    @classmethod
    def of(cls, devices: int | None) -> "Placement":
        """The first `devices` local ones; all of them by default.

        Raises:
            ConfigurationError: there are fewer.
        """
        there = jax.local_devices()
        wanted = len(there) if devices is None else devices
        if not 1 <= wanted <= len(there):
            raise ConfigurationError(
                f"devices={devices}: this host has {len(there)} {there[0].platform} devices"
            )
        return cls(Mesh(np.array(there[:wanted]), (DATA,)))

    @property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return str(self.mesh.devices.flat[0].platform)

    @cached_property
    def everywhere(self) -> NamedSharding:
        """The whole array on every device."""
        return NamedSharding(self.mesh, PartitionSpec())  # type: ignore[no-untyped-call]

    @cached_property
    def by_slot(self) -> NamedSharding:
        """The leading axis split between the devices."""
        return NamedSharding(self.mesh, PartitionSpec(DATA))  # type: ignore[no-untyped-call]

    def copy(self, array: ArrayLike) -> jax.Array:
        """Place on every device."""
        placed: jax.Array = jax.device_put(array, self.everywhere)
        return placed

    def split(self, tree: T) -> T:
        """Place slots, in order, on the devices: of one array, or of every array in a tree."""
        placed: T = jax.device_put(tree, self.by_slot)
        return placed
