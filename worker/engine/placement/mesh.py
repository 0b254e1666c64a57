"""Arrange the devices in a mesh and place arrays on them.

Input: how many devices to use, and how many of them share one copy of the weights. Output: a mesh
and the sharding of arrays: slots are split along `data`, weights along `model`.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractDevice, Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from numpy.typing import NDArray

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.text.printable import counted
from imagefleet.worker.engine.options.mesh_spec import DATA, MODEL

T = TypeVar("T")
Index = tuple[slice, ...]
PyTree = Any

VIRTUAL_CPU_DEVICES: Final = 8


def start_backend(devices: int | None) -> None:
    """Start JAX on this host. A CPU then has `devices` virtual devices, 8 by default.

    Other platforms keep the devices that they have. If the backend already runs, this does nothing,
    and `Placement.of` raises if there are too few devices. A number in XLA_FLAGS takes precedence.
    """
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with suppress(RuntimeError):  # the backend already runs
            jax.config.update(  # type: ignore[no-untyped-call]
                "jax_num_cpu_devices", devices or VIRTUAL_CPU_DEVICES
            )
    with _without_lines_about_tpus():
        jax.local_devices()


@contextmanager
def _without_lines_about_tpus() -> Iterator[None]:
    """Leave JAX's lines about its backends out on a host without a TPU, as libtpu is not there
    either, and nothing is wrong."""
    log = logging.getLogger("jax._src.xla_bridge")
    level = log.level
    devices = Path("/dev")
    if not [*devices.glob("accel*"), *devices.glob("vfio/[0-9]*")]:
        log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def target_device() -> AbstractDevice:
    """Return the kind of device that the program being traced is for.

    This is the kind of the current mesh, whose devices may be absent when a program is compiled
    ahead. Without a mesh it is the kind of JAX's default device.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        device = Mesh(np.array(jax.devices()[:1]), (DATA,)).abstract_mesh.abstract_device
    return cast(AbstractDevice, device)


def devices_per_copy() -> int:
    """Return how many devices share a copy of the weights in the program being traced."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else int(mesh.shape[MODEL])


def images_on_device(x: jax.Array) -> int:
    """Return how many entries of the first axis of `x` a device has in the program being traced."""
    mesh = jax.sharding.get_abstract_mesh()
    return len(x) // (1 if mesh.empty else int(mesh.shape[DATA]))


def is_bfloat16_on_tpu(x: jax.Array) -> bool:
    """Return whether `x` is bfloat16 in a program for TPUs.

    Layers compute such arrays by formulas that the TPU's compiler estimates to be faster. They lose
    less than the rounding to bfloat16. docs/tpu.md has the estimates.
    """
    return x.dtype == jnp.bfloat16 and target_device().platform == "tpu"


def compute_on_each_device(
    compute: Callable[..., T],
    *arguments: PyTree,
    whole: Collection[int] = (),
    heads: int | None = None,
    without_heads: Collection[int] = (),
) -> T:
    """Call `compute` on each device, with the images that it has. XLA cannot split a kernel that it
    does not know. Without a mesh there is one device.

    Args:
        arguments: Arrays, or trees of them, split along their first axis.
        whole: Numbers of the arguments of which each device has all.
        heads: Number of heads in the third axis of the arrays that have one. It is split along
            `model` too, if the devices there divide the number.
        without_heads: Numbers of the arguments whose third axis has no heads.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return compute(*arguments)
    splits_heads = heads is not None and heads % mesh.shape[MODEL] == 0
    whole_array, by_slot = PartitionSpec(), PartitionSpec(DATA)  # type: ignore[no-untyped-call]
    by_head = PartitionSpec(DATA, None, MODEL)  # type: ignore[no-untyped-call]

    def spec_of(number: int, array: jax.Array) -> PartitionSpec:
        has_heads = array.ndim > 2 and number not in without_heads
        return by_head if splits_heads and has_heads else by_slot

    mapped: Callable[..., T] = jax.shard_map(
        compute,
        mesh=mesh,
        in_specs=tuple(
            whole_array if n in whole else jax.tree.map(partial(spec_of, n), argument)
            for n, argument in enumerate(arguments)
        ),
        out_specs=by_head if splits_heads else by_slot,
        check_vma=False,
    )
    return mapped(*arguments)


def split_axis(shape: tuple[int, ...], model: int) -> int | None:
    """Return the axis along which `model` devices split a weight. None: each holds it whole.

    Matrices and kernels are split by output (the last axis) if it divides, else by input. Split by
    output, each number is the same sum as on one device. Vectors (a thousandth of a network) and
    all other weights are not split.
    """
    if model > 1 and len(shape) > 1:
        for axis in (len(shape) - 1, len(shape) - 2):
            if shape[axis] % model == 0:
                return axis
    return None


@dataclass(frozen=True)
class Placement:
    """The placement holds a mesh and shards arrays over it."""

    mesh: Mesh

    @classmethod
    def of(cls, devices: int | None, model: int = 1) -> "Placement":
        """Make a mesh of the first `devices` local devices, by default of all.

        Each `model` neighbouring devices share one copy of the weights.

        Raises:
            ConfigurationError: the host has fewer devices, or `model` does not divide their number.
        """
        return cls.over(jax.local_devices(), devices, model)

    @classmethod
    def on_host(cls) -> "Placement":
        """Make a mesh of the host's CPU alone.

        Raises:
            ConfigurationError: JAX is told not to use it.
        """
        try:
            return cls.over(jax.local_devices(backend="cpu"), 1)
        except RuntimeError as error:
            raise ConfigurationError(
                "IMAGEFLEET_HOST_TEXT_ENCODER needs the CPU beside the other devices; add it to "
                "JAX_PLATFORMS, as in tpu,cpu"
            ) from error

    @classmethod
    def over(
        cls, available: Sequence[jax.Device], devices: int | None, model: int = 1
    ) -> "Placement":
        """Make a mesh as `of` does, of the devices of any host."""
        count = len(available) if devices is None else devices
        if not 1 <= count <= len(available):
            raise ConfigurationError(
                f"IMAGEFLEET_DEVICES or IMAGEFLEET_MESH takes {counted(count, 'device')}, "
                f"the host has {counted(len(available), f'{available[0].platform} device')}"
            )
        if count % model:
            raise ConfigurationError(
                f"{counted(count, 'device')} cannot be divided into groups of model={model}"
            )
        return cls(Mesh(np.array(available[:count]).reshape(-1, model), (DATA, MODEL)))

    def copies(self) -> list["Placement"]:
        """Return a placement for each copy of the weights, with the devices of that copy alone."""
        return [Placement(Mesh(row.reshape(1, -1), (DATA, MODEL))) for row in self.mesh.devices]

    def take_weight(self, weight: jax.Array) -> jax.Array:
        """Return a weight of a larger placement as an array on the devices of this one, which hold
        a whole copy of it already. Nothing is copied."""
        parts = {shard.device: shard.data for shard in weight.addressable_shards}
        taken: jax.Array = jax.make_array_from_single_device_arrays(
            weight.shape,
            NamedSharding(self.mesh, cast(NamedSharding, weight.sharding).spec),
            [parts[device] for device in self.mesh.devices.flat],
        )
        return taken

    @property
    def device_list(self) -> list[jax.Device]:
        """Return the devices in their order."""
        devices: list[jax.Device] = self.mesh.devices.flatten().tolist()
        return devices

    @property
    def platform(self) -> str:
        """Return `cpu`, `gpu` or `tpu`."""
        return str(self.mesh.devices.flat[0].platform)

    @property
    def device_kind(self) -> str:
        """Return the kind of the devices, as JAX names it: `TPU v5 lite`, `NVIDIA H100` …"""
        return str(self.mesh.devices.flat[0].device_kind)

    @property
    def data(self) -> int:
        """Return the number of parts that a batch is split into."""
        return int(self.mesh.shape[DATA])

    @property
    def model(self) -> int:
        """Return the number of parts that the weights are split into."""
        return int(self.mesh.shape[MODEL])

    @cached_property
    def replicated(self) -> NamedSharding:
        """Return the sharding that puts the whole array on every device."""
        return self._sharding()

    @cached_property
    def by_slot(self) -> NamedSharding:
        """Return the sharding that splits the leading axis, the slots, along `data`."""
        return self._sharding(DATA)

    def weight_sharding(self, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding of a weight, split along `model` by `split_axis`."""
        axis = split_axis(shape, self.model)
        return self.replicated if axis is None else self._sharding(*[None] * axis, MODEL)

    def output_sharding(self, channels_out: int) -> NamedSharding:
        """Return the sharding of a matrix `[in, out]`, split by output if the devices divide it."""
        is_split = self.model > 1 and channels_out % self.model == 0
        return self._sharding(None, MODEL) if is_split else self.replicated

    def place_weight(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], read: Callable[[Index], NDArray[Any]]
    ) -> jax.Array:
        """Place a weight on the devices. Each part is read and cast once.

        The virtual devices of a CPU that hold the same part share its memory.
        """
        parts: dict[str, NDArray[Any]] = {}

        def read_part(index: Index | None) -> NDArray[Any]:
            if (name := str(index)) not in parts:
                parts[name] = self.as_devices_share_it(read(index or ()).astype(dtype, copy=False))
            return parts[name]

        return jax.make_array_from_callback(shape, self.weight_sharding(shape), read_part)

    def as_devices_share_it(self, part: NDArray[Any]) -> NDArray[Any]:
        """Return a part of a weight in memory that JAX need not copy for each device of a CPU.

        That is memory of JAX's own. Any other must lie at an address that is a multiple of 64, in
        C order.
        """
        if self.platform != "cpu" or self.data == 1:
            return part
        return np.asarray(jax.device_put(part, self.mesh.devices.flat[0]))

    def replicate(self, array: ArrayLike) -> jax.Array:
        """Place the whole array on every device."""
        placed: jax.Array = jax.device_put(array, self.replicated)
        return placed

    def split(self, tree: T) -> T:
        """Split an array, or every array of a tree, by slot over the devices, in order."""
        placed: T = jax.device_put(tree, self.by_slot)
        return placed

    def _sharding(self, *axes: str | None) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]
