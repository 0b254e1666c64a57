"""Let the devices that share a copy of the weights compute different rows of a batch.

Input: a program being traced for a mesh with `model` above 1. Output: a mesh of the same devices on
which each takes rows of its own. It does not know what the rows are.

A layer whose weights are split needs the other devices' part of every map. Where maps are larger
than weights, less is exchanged if each device gathers the whole weights of a layer, which it can do
while it computes the layers before, and computes the layer for rows of its own. Kernels, and the
choices that follow the number of maps on a device, are then those of a device with a whole copy.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import jax
from jax.sharding import AbstractMesh, PartitionSpec

from imagefleet.worker.engine.options.mesh_spec import DATA, MODEL

T = TypeVar("T")


def shares_weights() -> bool:
    """Return whether several devices share a copy of the weights in the program being traced."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.shape[MODEL] > 1


def rows_to_split(rows: int) -> int:
    """Return how many of the rows of a batch the devices of a copy have together, if they can split
    them; else 0."""
    mesh = jax.sharding.get_abstract_mesh()
    return int(rows // mesh.shape[DATA]) if shares_weights() and rows % mesh.size == 0 else 0


@contextmanager
def every_device_alone() -> Iterator[None]:
    """Set the mesh to one in which no devices share weights, while the context is open."""
    mesh = jax.sharding.get_abstract_mesh()
    alone = AbstractMesh(
        (mesh.size, 1),
        (DATA, MODEL),
        axis_types=mesh.axis_types,
        abstract_device=mesh.abstract_device,
    )
    with jax.sharding.use_abstract_mesh(alone):
        yield


def compute_on_parts(
    compute: Callable[..., jax.Array], *arrays: jax.Array, axes: Sequence[int], result_axis: int
) -> jax.Array:
    """Call `compute` on each device, with the rows that it has and its part of another axis.

    Args:
        arrays: Split along their first axis, and along that of `axes` by the devices of a copy.
        axes: Of each array.
        result_axis: That of the result.
    """

    def split(axis: int) -> PartitionSpec:
        return PartitionSpec(DATA, *[None] * (axis - 1), MODEL)  # type: ignore[no-untyped-call]

    mapped: Callable[..., jax.Array] = jax.shard_map(
        compute,
        mesh=jax.sharding.get_abstract_mesh(),
        in_specs=tuple(map(split, axes)),
        out_specs=split(result_axis),
        check_vma=False,
    )
    return mapped(*arrays)


def gather(weights: T) -> T:
    """Have each device hold all of each array of a tree."""
    return _constrain(weights, PartitionSpec())  # type: ignore[no-untyped-call]


def split_rows(arrays: T) -> T:
    """Split each array of a tree along its first axis, as the current mesh splits a batch."""
    return _constrain(arrays, PartitionSpec(DATA))  # type: ignore[no-untyped-call]


def _constrain(tree: T, spec: PartitionSpec) -> T:
    constrained: T = jax.tree.map(
        lambda array: jax.lax.with_sharding_constraint(array, spec),  # type: ignore[no-untyped-call]
        tree,
    )
    return constrained
