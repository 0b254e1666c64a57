"""Compute attention over packed heads on TPU with a kernel of our own, written in Pallas.

Input: queries, keys and values `[b, n, lanes]`, as `packed_attention.HeadPacking` arranges them.
Output: the attended values in the same arrangement. The kernel depends on no network.

It is flash attention (Dao et al. 2022): the scores of one block of queries and keys are in the
memory of the core, and the sums of the softmax are corrected from block to block. A product with
the queries of one head uses all 128 lanes of the keys; the lanes of the other heads are 0 in the
queries. That costs nothing: the matrix unit would fill up one head to 128 lanes anyway. In the
values these lanes are 1, so that the product also adds up the softmax. The exponentials are powers
of 2, since the queries are scaled by log2(e).
"""

from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from imagefleet.worker.engine.attention import MULTIPLIES_FLOAT32_ONLY, largest_block
from imagefleet.worker.engine.attention_backend import TPU_LANES
from imagefleet.worker.engine.mesh import target_device
from imagefleet.worker.engine.packed_attention import KERNEL_NAME, HeadPacking

_LEAST: Final = float(np.finfo(np.float32).min)
_LARGE_BLOCKS: Final = ("TPU v5 lite", "TPU v5e", "TPU v5", "TPU v5p", "TPU v6 lite", "TPU v6e")
"""Kinds of devices whose cores have 64 MiB of memory or more. With blocks of 1024 queries and 2048
keys of bfloat16, their compiler's schedule takes 0.86 of the cycles that it takes with 512 and
1024. The other kinds have 16 MiB."""
_MEMORY_BYTES: Final = 24 * 2**20
"""The core's memory that the kernel may use with large blocks."""


def attend_by_kernel(
    q: jax.Array, k: jax.Array, v: jax.Array, *, packing: HeadPacking
) -> jax.Array:
    """Attend on one device. The arguments are those of `packed_attention.attend_packed`."""
    batch, length, lanes = q.shape
    is_large = target_device().device_kind in _LARGE_BLOCKS and q.dtype == jnp.bfloat16
    max_queries, max_keys = (1024, 2048) if is_large else (512, 1024)
    queries, keys = largest_block(length, max_queries), largest_block(k.shape[1], max_keys)
    of_queries = pl.BlockSpec((1, queries, TPU_LANES), lambda b, tile, i, j: (b, i, tile))
    of_keys = pl.BlockSpec((1, keys, TPU_LANES), lambda b, tile, i, j: (b, j, tile))
    scores = batch * packing.heads * length * k.shape[1]
    by_head = pltpu.VMEM((packing.heads_per_tile, queries, TPU_LANES), jnp.float32)
    result: jax.Array = pl.pallas_call(
        partial(_compute_block, packing=packing, operands=_operand_dtype(q.dtype)),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),  # type: ignore[no-untyped-call]
        grid=(batch, packing.tiles, length // queries, k.shape[1] // keys),
        in_specs=[of_queries, of_keys, of_keys],
        out_specs=of_queries,
        scratch_shapes=[by_head, by_head],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=_MEMORY_BYTES if is_large else None,
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * scores * packing.head_dim,
            bytes_accessed=q.dtype.itemsize * batch * lanes * 2 * (length + k.shape[1]),
            transcendentals=scores,
        ),
        name=f"{KERNEL_NAME}_{packing.heads}",
    )(q, k, v)
    return result


def _operand_dtype(dtype: DTypeLike) -> DTypeLike:
    return jnp.float32 if target_device().device_kind in MULTIPLIES_FLOAT32_ONLY else dtype


def _compute_block(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    greatest: Any,
    attended: Any,
    *,
    packing: HeadPacking,
    operands: DTypeLike,
) -> None:
    """Add one block of keys to the results of one block of queries.

    Both `[heads, n, lanes]`: `greatest` is the maximum of each softmax so far, the same in all
    lanes; `attended` has the sums of the values in the lanes of the head, and in all others the sum
    of the softmax.
    """
    is_last_tile = pl.program_id(1) == packing.tiles - 1
    heads_of_last_tile = packing.heads - (packing.tiles - 1) * packing.heads_per_tile

    @pl.when(pl.program_id(3) == 0)
    def reset() -> None:
        greatest[...] = jnp.full_like(greatest, _LEAST)
        attended[...] = jnp.zeros_like(attended)

    for head in range(packing.heads_per_tile):
        add = partial(_add_head, q, k, v, greatest, attended, head, packing, operands)
        if head < heads_of_last_tile:
            add()
        else:
            pl.when(jnp.logical_not(is_last_tile))(add)

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def finish() -> None:
        result = jnp.zeros(attended.shape[1:], jnp.float32)
        for head in range(packing.heads_per_tile):
            sums = attended[head]
            other_lane = packing.lane_beside(head)
            # A sum contains 2 ** 0 = 1. It is 0 only where the last lanes have no head.
            total = jnp.maximum(sums[:, other_lane : other_lane + 1], 1.0)
            result = jnp.where(_lanes_of(head, packing, result), sums / total, result)
        out[0] = result.astype(out.dtype)


def _add_head(
    q: Any,
    k: Any,
    v: Any,
    greatest: Any,
    attended: Any,
    head: int,
    packing: HeadPacking,
    operands: DTypeLike,
) -> None:
    scaled = q[0].astype(jnp.float32) * (packing.head_dim**-0.5 * np.log2(np.e))
    query = jnp.where(_lanes_of(head, packing, scaled), scaled, 0.0).astype(operands)
    scores = jax.lax.dot_general(
        query,
        k[0].astype(operands),
        (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.float32,
    )  # [n, m]
    before = greatest[head]
    now = jnp.maximum(before, scores.max(axis=1, keepdims=True))
    weights = jnp.exp2(scores - jnp.tile(now, (1, scores.shape[1] // TPU_LANES)))
    values = v[0].astype(operands)
    values = jnp.where(_lanes_of(head, packing, values), values, jnp.ones_like(values))
    added = jnp.dot(weights.astype(operands), values, preferred_element_type=jnp.float32)
    greatest[head] = now
    attended[head] = jnp.exp2(before - now) * attended[head] + added


def _lanes_of(head: int, packing: HeadPacking, like: jax.Array) -> jax.Array:
    """Return which lanes of an array `[n, lanes]` are those of a head of the tile."""
    lane = jax.lax.broadcasted_iota(jnp.int32, like.shape, 1)
    first = head * packing.head_dim
    return (lane >= first) & (lane < first + packing.head_dim)
