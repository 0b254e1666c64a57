"""Compute attention over packed heads on TPU with a kernel of our own, written in Pallas.

Input: queries, keys and values, as `HeadPacking` arranges them. Output: the
attended values, arranged like the values. The kernel depends on no network.

It is flash attention (Dao et al. 2022): the scores of one block of queries and keys are in the
memory of the core, and the sums of the softmax are corrected from block to block.

Both products have the queries in the columns, so that the maximum of a softmax is taken over rows:

- scores `[keys, queries]` = keys `[keys, 128]` · queries `[128, queries]`. A product takes all 128
  lanes of the keys; the rows of the other heads are 0 in the queries. That costs nothing: the
  matrix unit would fill up one head to 128 lanes anyway.
- attended `[rows, queries]` = values `[rows, keys]` · weights `[keys, queries]`. A head of
  40 channels has 48 rows, one of 64 has 80, in the place of 128 columns, so the matrix unit needs
  about half of the time. The values of the spare rows are 1, so that the product also adds up the
  softmax.

The exponentials are powers of 2, since the queries are scaled by log2(e). Whoever makes the queries
scales them in float32: to scale them here would round them to bfloat16 a second time, which makes
large scores wrong by more than all other roundings together.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from imagefleet.worker.engine.kernels.attention import largest_block
from imagefleet.worker.engine.kernels.attention_backend import (
    MULTIPLIES_FLOAT32_ONLY,
    TPU_LANES,
)
from imagefleet.worker.engine.kernels.head_packing import KERNEL_NAME, HeadPacking
from imagefleet.worker.engine.placement.mesh import target_device

_LEAST: Final = float(np.finfo(np.float32).min)
_V6E: Final = ("TPU v6 lite", "TPU v6e")
_LARGE_BLOCKS: Final = ("TPU v5 lite", "TPU v5e", "TPU v5", "TPU v5p", *_V6E)
"""Kinds of devices whose cores have 64 MiB of memory or more. The other kinds have 16 MiB."""
LARGE_BLOCK: Final = (1024, 2048)
"""It is the number of queries and the number of keys."""
SMALL_BLOCK: Final = (512, 1024)
_MAX_HEADS_OF_LARGE_BLOCKS: Final = 4
"""128 lanes may have at most this many heads. Each head has sums of its own in the memory."""
_MEMORY_BYTES: Final = 24 * 2**20
"""The kernel may use so much of the core's memory with large blocks."""
_CHUNK_ON_V6E: Final = 512
"""v6e computes the scores of this many keys while it takes the exponentials of the keys before. The
schedule of other kinds is as good or better if a head's block is one chunk."""


def has_large_blocks(packing: HeadPacking, device_kind: str, dtype: DTypeLike) -> bool:
    """Return whether the kernel takes blocks of up to `LARGE_BLOCK`, or else `SMALL_BLOCK`."""
    return (
        device_kind in _LARGE_BLOCKS
        and dtype == jnp.bfloat16
        and packing.heads_per_tile <= _MAX_HEADS_OF_LARGE_BLOCKS
    )


def attend_by_kernel(
    q: jax.Array, k: jax.Array, v: jax.Array, *, packing: HeadPacking
) -> jax.Array:
    """Attend on one device. The arguments are those of `packed_attention.attend_packed`."""
    batch, _, length = q.shape
    device_kind = target_device().device_kind
    is_large = has_large_blocks(packing, device_kind, q.dtype)
    max_queries, max_keys = LARGE_BLOCK if is_large else SMALL_BLOCK
    queries, keys = largest_block(length, max_queries), largest_block(k.shape[1], max_keys)
    chunk = largest_block(keys, _CHUNK_ON_V6E) if device_kind in _V6E else keys
    rows = packing.heads_per_tile * packing.rows_per_head
    of_queries = pl.BlockSpec((1, TPU_LANES, queries), lambda b, tile, i, j: (b, tile, i))
    of_keys = pl.BlockSpec((1, keys, TPU_LANES), lambda b, tile, i, j: (b, j, tile))
    of_values = pl.BlockSpec((1, rows, keys), lambda b, tile, i, j: (b, tile, j))
    of_result = pl.BlockSpec((1, rows, queries), lambda b, tile, i, j: (b, tile, i))
    scores = batch * packing.heads * length * k.shape[1]
    operands = _operand_dtype(q.dtype)
    result: jax.Array = pl.pallas_call(
        partial(_compute_block, packing=packing, chunk=chunk, operands=operands),
        out_shape=jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            (batch, v.shape[1], length), q.dtype
        ),
        grid=(batch, packing.tiles, length // queries, k.shape[1] // keys),
        in_specs=[of_queries, of_keys, of_values],
        out_specs=of_result,
        scratch_shapes=[
            pltpu.VMEM((packing.heads_per_tile, 1, queries), jnp.float32),
            pltpu.VMEM((packing.heads_per_tile, packing.rows_with_sum, queries), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=_MEMORY_BYTES if is_large else None,
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * scores * packing.head_dim,
            bytes_accessed=2 * (q.nbytes + k.nbytes),
            transcendentals=scores,
        ),
        name=f"{KERNEL_NAME}_{packing.heads}x{packing.head_dim}",
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
    chunk: int,
    operands: DTypeLike,
) -> None:
    """Add one block of keys to the results of one block of queries.

    `greatest [heads, 1, n]` is the maximum of each softmax so far. `attended [heads, rows, n]` has
    the sums of each head's values, and in its spare rows the sum of the softmax.
    """
    is_last_tile = pl.program_id(1) == packing.tiles - 1
    heads_of_last_tile = packing.heads - (packing.tiles - 1) * packing.heads_per_tile

    @pl.when(pl.program_id(3) == 0)
    def reset() -> None:
        greatest[...] = jnp.full_like(greatest, _LEAST)
        attended[...] = jnp.zeros_like(attended)

    tile = _Tile(q, k, v, greatest, attended, packing, chunk, operands)
    if heads_of_last_tile == packing.heads_per_tile:
        tile.add(packing.heads_per_tile)
    else:
        pl.when(jnp.logical_not(is_last_tile))(lambda: tile.add(packing.heads_per_tile))
        pl.when(is_last_tile)(lambda: tile.add(heads_of_last_tile))

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def finish() -> None:
        for head in range(packing.heads_per_tile):
            sums = attended[head]
            # A sum contains 2 ** 0 = 1. It is 0 only where the last tile has no such head.
            total = jnp.maximum(sums[packing.head_dim : packing.head_dim + 1], 1.0)
            values = sums[: packing.rows_per_head] / total
            out[0, packing.rows_of(head), :] = values.astype(out.dtype)


class _Tile(NamedTuple):
    """It has the heads of 128 lanes, for one block of queries and keys."""

    q: Any
    k: Any
    v: Any
    greatest: Any
    attended: Any
    packing: HeadPacking
    chunk: int
    operands: DTypeLike

    def add(self, heads: int) -> None:
        """Add the block of keys to the results of the first `heads` heads.

        The program has the scores of the next chunk before the exponentials of this one, so that
        both may be computed at the same time.
        """
        work = list(self._split(heads))
        queries = [self._query(head) for head in range(heads)]
        scores = self._scores(queries, *work[0])
        for this, following in pairwise(work):
            next_scores = self._scores(queries, *following)
            self._add_chunk(scores, *this)
            scores = next_scores
        self._add_chunk(scores, *work[-1])

    def _split(self, heads: int) -> Iterator[tuple[int, slice]]:
        for head in range(heads):
            for start in range(0, self.k.shape[1], self.chunk):
                yield head, slice(start, start + self.chunk)

    def _query(self, head: int) -> jax.Array:
        query = self.q[0].astype(jnp.float32)
        row = jax.lax.broadcasted_iota(jnp.int32, query.shape, 0)
        first = head * self.packing.head_dim
        is_own = (row >= first) & (row < first + self.packing.head_dim)
        return jnp.where(is_own, query, 0.0).astype(self.operands)

    def _scores(self, queries: list[jax.Array], head: int, keys: slice) -> jax.Array:
        """Return `[keys, queries]`."""
        k = self.k[0, keys, :].astype(self.operands)
        return jnp.dot(k, queries[head], preferred_element_type=jnp.float32)

    def _add_chunk(self, scores: jax.Array, head: int, keys: slice) -> None:
        before = self.greatest[head]
        now = jnp.maximum(before, scores.max(axis=0, keepdims=True))
        weights = jnp.exp2(scores - now).astype(self.operands)
        added = jnp.dot(self._values(head, keys), weights, preferred_element_type=jnp.float32)
        self.greatest[head] = now
        self.attended[head] = jnp.exp2(before - now) * self.attended[head] + added

    def _values(self, head: int, keys: slice) -> jax.Array:
        """Return `[rows, keys]`: the values of a head, and 1 in its spare rows."""
        packing = self.packing
        values = self.v[0, packing.rows_of(head), keys].astype(self.operands)
        if packing.head_dim == packing.rows_per_head:
            spare = (packing.rows_with_sum - packing.head_dim, values.shape[1])
            return jnp.concatenate([values, jnp.ones(spare, values.dtype)])
        row = jax.lax.broadcasted_iota(jnp.int32, values.shape, 0)
        return jnp.where(row < packing.head_dim, values, jnp.ones_like(values))
