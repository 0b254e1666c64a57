"""Which devices, and what lies where on them.

Goes in: how many devices to use, and how many of them hold one copy of the weights. Comes out: a
mesh and where everything lies on it: slots split along `data`, weights along `model`.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from numpy.typing import NDArray

from imagefleet.shared.errors import ConfigurationError
from imagefleet.worker.engine.mesh_spec import DATA, MODEL

T = TypeVar("T")
Index = tuple[slice, ...]

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
    def of(cls, devices: int | None, model: int = 1) -> "Placement":
        """The first `devices` local ones, all of them by default; neighbours share the weights.

        Raises:
            ConfigurationError: there are fewer.
        """
        there = jax.local_devices()
        wanted = len(there) if devices is None else devices
        if not 1 <= wanted <= len(there):
            raise ConfigurationError(
                f"devices={wanted}: this host has {len(there)} {there[0].platform} devices"
            )
        if wanted % model:
            raise ConfigurationError(f"{wanted} devices cannot share weights by {model}")
        return cls(Mesh(np.array(there[:wanted]).reshape(-1, model), (DATA, MODEL)))

    @property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return str(self.mesh.devices.flat[0].platform)

    @property
    def data(self) -> int:
        """Parts that a batch is split into."""
        return int(self.mesh.shape[DATA])

    @property
    def model(self) -> int:
        """Parts that the weights are split into."""
        return int(self.mesh.shape[MODEL])

    @cached_property
    def everywhere(self) -> NamedSharding:
        """The whole array on every device."""
        return self._sharding()

    @cached_property
    def by_slot(self) -> NamedSharding:
        """The leading axis split along `data`."""
        return self._sharding(DATA)

    def of_weight(self, shape: tuple[int, ...]) -> NamedSharding:
        """Where a weight lies: matrices and kernels split along `model` by output, the last axis,
        else by input; vectors, a thousandth of a network, and what does not divide everywhere.

        Split by output, every number is still the sum that one device would make.
        """
        if self.model > 1 and len(shape) > 1:
            if shape[-1] % self.model == 0:
                return self._sharding(*[None] * (len(shape) - 1), MODEL)
            if shape[-2] % self.model == 0:
                return self._sharding(*[None] * (len(shape) - 2), MODEL)
        return self.everywhere

    def place_weight(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], read: Callable[[Index], NDArray[Any]]
    ) -> jax.Array:
        """Read, cast and place a weight in its parts, each of them once."""
        parts: dict[str, NDArray[Any]] = {}

        def part(index: Index | None) -> NDArray[Any]:
            if (name := str(index)) not in parts:
                parts[name] = read(index or ()).astype(dtype, copy=False)
            return parts[name]

        return jax.make_array_from_callback(shape, self.of_weight(shape), part)

    def copy(self, array: ArrayLike) -> jax.Array:
        """Place on every device."""
        placed: jax.Array = jax.device_put(array, self.everywhere)
        return placed

    def split(self, tree: T) -> T:
        """Place slots, in order, on the devices: of one array, or of every array in a tree."""
        placed: T = jax.device_put(tree, self.by_slot)
        return placed

    def _sharding(self, *axes: str | None) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]
