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
from dataclasses import dataclass, field
from functools import partial
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
_LARGE_BLOCKS: Final = (
    *("TPU v5 lite", "TPU v5e", "TPU v5", "TPU v5p"),
    *("TPU v6 lite", "TPU v6e"),
)
"""Kinds of devices whose cores have 64 MiB of memory or more. The other kinds have 16 MiB."""
LARGE_BLOCK: Final = (1024, 2048)
"""It is the number of queries and the number of keys."""
SMALL_BLOCK: Final = (512, 1024)
_MAX_HEADS_OF_LARGE_BLOCKS: Final = 4
"""128 lanes may have at most this many heads. Each head has sums of its own in the memory."""
_MEMORY_BYTES: Final = 24 * 2**20
"""The kernel may use so much of the core's memory with large blocks."""
_PART_QUERIES: Final = 512
"""The queries of a head are computed in parts of this many."""
_CHUNK_KEYS: Final = 256


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
    rows = packing.heads_per_tile * packing.rows_per_head
    of_queries = pl.BlockSpec((1, TPU_LANES, queries), lambda b, tile, i, j: (b, tile, i))
    of_keys = pl.BlockSpec((1, keys, TPU_LANES), lambda b, tile, i, j: (b, j, tile))
    of_values = pl.BlockSpec((1, rows, keys), lambda b, tile, i, j: (b, tile, j))
    of_result = pl.BlockSpec((1, rows, queries), lambda b, tile, i, j: (b, tile, i))
    scores = batch * packing.heads * length * k.shape[1]
    operands = _operand_dtype(q.dtype)
    result: jax.Array = pl.pallas_call(
        partial(_compute_block, packing=packing, operands=operands),
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

    tile = _Tile(q, k, v, greatest, attended, packing, operands)
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


@dataclass(kw_only=True)
class _Part:
    """It is a part of the queries of a head, with its scores."""

    head: int
    columns: slice
    queries: jax.Array
    """It is `[lanes, n]`, with 0 in the rows of other heads."""
    before: jax.Array
    """It is `[1, n]`: the maximum of each softmax before this block of keys."""
    greatest: jax.Array
    """It is the maximum with the scores so far."""
    scores: list[jax.Array] = field(default_factory=list)
    """For each chunk of keys it is `[keys, n]`."""

    def take(self, scores: jax.Array) -> None:
        """Take the scores of the next chunk of keys."""
        self.scores.append(scores)
        self.greatest = jnp.maximum(self.greatest, scores.max(axis=0, keepdims=True))


class _Tile(NamedTuple):
    """It has the heads of 128 lanes, for one block of queries and keys."""

    q: Any
    k: Any
    v: Any
    greatest: Any
    attended: Any
    packing: HeadPacking
    operands: DTypeLike

    def add(self, heads: int) -> None:
        """Add the block of keys to the results of the first `heads` heads.

        The matrix unit computes the scores of one part while the exponentials of the part before
        are taken. Both alternate in chunks of keys, since the compiler orders instructions only
        near to where they are written.
        """
        chunk = largest_block(self.k.shape[1], _CHUNK_KEYS)
        chunks = [slice(start, start + chunk) for start in range(0, self.k.shape[1], chunk)]
        previous: _Part | None = None
        for part in (*self._split(heads), None):
            added: list[jax.Array] = []
            for index, keys in enumerate(chunks):
                if part is not None:
                    part.take(self._multiply(self.k[0, keys, :], part.queries))
                if previous is not None:
                    weights = jnp.exp2(previous.scores[index] - previous.greatest)
                    added.append(self._multiply(self._values(previous.head, keys), weights))
            if previous is not None:
                self._write(previous, sum(added[1:], start=added[0]))
            previous = part

    def _split(self, heads: int) -> Iterator[_Part]:
        length = self.q.shape[2]
        count = largest_block(length, _PART_QUERIES)
        for head in range(heads):
            for start in range(0, length, count):
                columns = slice(start, start + count)
                queries, before = self._queries(head, columns), self.greatest[head, :, columns]
                yield _Part(
                    head=head, columns=columns, queries=queries, before=before, greatest=before
                )

    def _queries(self, head: int, columns: slice) -> jax.Array:
        queries = self.q[0, :, columns].astype(jnp.float32)
        row = jax.lax.broadcasted_iota(jnp.int32, queries.shape, 0)
        first = head * self.packing.head_dim
        is_own = (row >= first) & (row < first + self.packing.head_dim)
        return jnp.where(is_own, queries, 0.0)

    def _write(self, part: _Part, added: jax.Array) -> None:
        """Add to the results of a part. If its maximum has grown, they shrink."""
        place = (part.head, slice(None), part.columns)
        self.greatest[place] = part.greatest
        shrunk = jnp.exp2(part.before - part.greatest) * self.attended[place]
        self.attended[place] = shrunk + added

    def _multiply(self, left: jax.Array, right: jax.Array) -> jax.Array:
        left, right = left.astype(self.operands), right.astype(self.operands)
        return jnp.dot(left, right, preferred_element_type=jnp.float32)

    def _values(self, head: int, keys: slice) -> jax.Array:
        """Return `[rows, keys]`: the values of a head, and 1 in its spare rows."""
        packing = self.packing
        values = self.v[0, packing.rows_of(head), keys].astype(self.operands)
        if packing.head_dim == packing.rows_per_head:
            spare = (packing.rows_with_sum - packing.head_dim, values.shape[1])
            return jnp.concatenate([values, jnp.ones(spare, values.dtype)])
        row = jax.lax.broadcasted_iota(jnp.int32, values.shape, 0)
        return jnp.where(row < packing.head_dim, values, jnp.ones_like(values))
