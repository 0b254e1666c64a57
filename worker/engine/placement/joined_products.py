"""Compute products with weights that devices share, such that they exchange little.

Input: arrays in a program for a mesh. Output: the same numbers, with all columns on each device of
a copy of the weights. It knows no layers.
"""

from collections.abc import Sequence
from itertools import accumulate

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from imagefleet.worker.engine.options.mesh_spec import DATA, MODEL
from imagefleet.worker.engine.placement.mesh import devices_per_copy, is_bfloat16_on_tpu


def add_up_over_devices(parts: Sequence[jax.Array], matrix: jax.Array) -> jax.Array:
    """Return the product of joined parts and a matrix, which devices split by output."""
    ends = list(accumulate(part.shape[-1] for part in parts))[:-1]

    def add_up(parts: Sequence[jax.Array], matrix: jax.Array) -> jax.Array:
        total = jnp.float32(0)
        for part, rows in zip(parts, jnp.split(matrix, ends, axis=0), strict=True):
            own = jax.lax.all_to_all(rows, MODEL, 0, 1, tiled=True)  # type: ignore[no-untyped-call]
            total += jnp.dot(part, own, preferred_element_type=jnp.float32)
        rounded = total.astype(parts[0].dtype)
        added: jax.Array = jax.lax.psum(rounded, MODEL)  # type: ignore[no-untyped-call]
        return added

    of_parts = PartitionSpec(DATA, None, MODEL)  # type: ignore[no-untyped-call]
    of_matrix = PartitionSpec(None, MODEL)  # type: ignore[no-untyped-call]
    mapped = jax.shard_map(
        add_up,
        mesh=jax.sharding.get_abstract_mesh(),
        in_specs=(of_parts, of_matrix),
        out_specs=PartitionSpec(DATA),  # type: ignore[no-untyped-call]
        check_vma=False,
    )
    result: jax.Array = mapped(tuple(parts), matrix)
    return result


def share_whole(x: jax.Array) -> jax.Array:
    """Return `[b, …]` such that each device of a copy of the weights has all columns, on TPU.

    Layers that multiply or add a few vectors to tokens then compute whole tokens, which need not be
    exchanged afterwards.
    """
    if is_bfloat16_on_tpu(x) and devices_per_copy() > 1:
        by_slot = PartitionSpec(DATA)  # type: ignore[no-untyped-call]
        x = jax.lax.with_sharding_constraint(x, by_slot)  # type: ignore[no-untyped-call]
    return x
