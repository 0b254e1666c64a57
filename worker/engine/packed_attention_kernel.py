"""Compute attention over packed heads on TPU with a kernel of our own, written in Pallas.

Input: queries, keys and values `[b, n, lanes]`, as `packed_attention.HeadPacking` arranges them.
Output: the attended values in the same arrangement. The kernel depends on no network.

It is flash attention (Dao et al. 2022): the scores of one block of queries and keys are in the
memory of the core, and the sums of the softmax are corrected from block to block. A product with
the queries of one head uses all 128 lanes of the keys; the lanes of the other heads are 0 in the
queries. That costs nothing: the matrix unit would fill up one head to 128 lanes anyway.
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


def attend_by_kernel(
    q: jax.Array, k: jax.Array, v: jax.Array, *, packing: HeadPacking
) -> jax.Array:
    """Attend on one device. The arguments are those of `packed_attention.attend_packed`."""
    batch, length, lanes = q.shape
    queries, keys = largest_block(length, 512), largest_block(k.shape[1], 1024)
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
        scratch_shapes=[by_head, by_head, pltpu.VMEM((queries, TPU_LANES), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
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
    total: Any,
    attended: Any,
    *,
    packing: HeadPacking,
    operands: DTypeLike,
) -> None:
    """Add one block of keys to the results of one block of queries.

    `greatest` and `total [heads, n, lanes]` are the maximum and the sum of each softmax so far, the
    same in all lanes; `attended [n, lanes]` are the sums of the values.
    """
    first_head = pl.program_id(1) * packing.heads_per_tile

    @pl.when(pl.program_id(3) == 0)
    def reset() -> None:
        greatest[...] = jnp.full_like(greatest, _LEAST)
        total[...] = jnp.zeros_like(total)
        attended[...] = jnp.zeros_like(attended)

    for head in range(packing.heads_per_tile):
        add = partial(_add_head, q, k, v, greatest, total, attended, head, packing, operands)
        pl.when(first_head + head < packing.heads)(add)

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def finish() -> None:
        result = jnp.zeros(attended.shape, jnp.float32)
        for head in range(packing.heads_per_tile):
            # A sum contains exp(0) = 1. It is 0 only where the last lanes have no head.
            divided = attended[...] / jnp.maximum(total[head], 1.0)
            result = jnp.where(_lanes_of(head, packing, result), divided, result)
        out[0] = result.astype(out.dtype)


def _add_head(
    q: Any,
    k: Any,
    v: Any,
    greatest: Any,
    total: Any,
    attended: Any,
    head: int,
    packing: HeadPacking,
    operands: DTypeLike,
) -> None:
    scaled = q[0].astype(jnp.float32) * packing.head_dim**-0.5
    is_of_head = _lanes_of(head, packing, scaled)
    query = jnp.where(is_of_head, scaled, 0.0).astype(operands)
    scores = jax.lax.dot_general(
        query,
        k[0].astype(operands),
        (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.float32,
    )  # [n, m]
    before = greatest[head]
    now = jnp.maximum(before, scores.max(axis=1, keepdims=True))
    weights = jnp.exp(scores - jnp.tile(now, (1, scores.shape[1] // TPU_LANES)))
    decay = jnp.exp(before - now)
    greatest[head] = now
    total[head] = decay * total[head] + weights.sum(axis=1, keepdims=True)
    product = jnp.dot(
        weights.astype(operands), v[0].astype(operands), preferred_element_type=jnp.float32
    )
    attended[...] = jnp.where(is_of_head, decay * attended[...] + product, attended[...])


def _lanes_of(head: int, packing: HeadPacking, like: jax.Array) -> jax.Array:
    """Return which lanes of an array `[n, lanes]` are those of a head of the tile."""
    lane = jax.lax.broadcasted_iota(jnp.int32, like.shape, 1)
    first = head * packing.head_dim
    return (lane >= first) & (lane < first + packing.head_dim)
