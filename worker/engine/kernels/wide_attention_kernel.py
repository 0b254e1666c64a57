"""Compute attention over heads of 128 channels on TPU with a kernel of our own, written in Pallas.

Input: queries, keys and values as the layers project them, and which keys count. Output: the
attended values in the same layout. The kernel depends on no network.

It is flash attention (Dao et al. 2022): the scores of one block of queries and keys are in the
memory of the core, and the sums of the softmax are corrected from block to block. Three things make
it faster than Pallas' kernel (docs/tpu.md has the numbers):

- A head fills the 128 lanes of a register, so the kernel takes its columns where the projection
  wrote them. Nothing is copied before or after it.
- The queries of a block are computed in parts. The program has the scores of the next part before
  the exponentials of this one, so that the matrix unit need not wait for them.
- Blocks of keys of which all count have no mask, and blocks of which none counts are skipped.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from math import log2, sqrt
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from imagefleet.worker.engine.kernels.attention_backend import (
    MULTIPLIES_FLOAT32_ONLY,
    TPU_LANES,
)
from imagefleet.worker.engine.placement.mesh import target_device

KERNEL_NAME: Final = "wide_attention"
"""The programs contain this name, so that `tools.tpu` finds the kernel there."""
_LEAST: Final = float(np.finfo(np.float32).min)
_LARGE_MEMORY: Final = ("TPU v5 lite", "TPU v5e", "TPU v5", "TPU v5p", "TPU v6 lite", "TPU v6e")
"""Kinds of devices whose cores have 64 MiB of memory or more. The other kinds have 16 MiB."""
_MEMORY_BYTES: Final = 48 * 2**20
"""The kernel may use so much of the core's memory with large blocks."""
LARGE_BLOCK: Final = 1152
"""A block has at most this many queries and keys. 4,608 tokens are four such blocks."""
_SMALL_BLOCK: Final = 512
_TOKENS_OF_BEGINNING: Final = 340
"""To begin a block takes about 0.35 µs, in which this many queries and keys would be computed on
v5e."""
_PART: Final = 384
"""A part has at most this many queries."""


def attend_wide_heads(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, *, head_dim: int
) -> jax.Array:
    """Compute softmax(q kᵀ / √head_dim) v per head on one device.

    Args:
        q: `[b, n, heads * 128]`.
        k: `[b, m, heads * 128]`.
        v: `[b, m, heads * 128]`.
        mask: bool `[b, m]`: the keys that count; the others and their values may be NaN.
        head_dim: The channels of a head that are not filled up with zeros.

    Returns:
        `[b, n, heads * 128]`. It is 0 where no key counts.
    """
    batch, length, channels = q.shape
    queries, keys = block_length(length, q.dtype), block_length(k.shape[1], q.dtype)
    blocks = -(-k.shape[1] // keys)
    mask = jnp.pad(mask, [(0, 0), (0, blocks * keys - k.shape[1])]).astype(jnp.int32)
    counts = mask.reshape(batch, blocks, keys).sum(axis=-1, dtype=jnp.int32)
    of_queries = pl.BlockSpec((1, queries, TPU_LANES), lambda b, head, i, j, _: (b, i, head))
    of_keys = pl.BlockSpec((1, keys, TPU_LANES), lambda b, head, i, j, _: (b, j, head))
    of_mask = pl.BlockSpec((1, 1, keys), lambda b, head, i, j, _: (b, 0, j))
    scores = batch * (channels // TPU_LANES) * length * k.shape[1]
    result: jax.Array = pl.pallas_call(
        partial(_compute_block, heads=_Heads(_operand_dtype(q.dtype), head_dim)),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),  # type: ignore[no-untyped-call]
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, channels // TPU_LANES, -(-length // queries), blocks),
            in_specs=[of_queries, of_keys, of_keys, of_mask],
            out_specs=of_queries,
            scratch_shapes=[pltpu.VMEM((queries, TPU_LANES), jnp.float32)] * 3,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=_MEMORY_BYTES if _has_large_memory() else None,
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * scores * TPU_LANES,
            bytes_accessed=2 * (q.nbytes + k.nbytes),
            transcendentals=scores,
        ),
        name=KERNEL_NAME,
    )(counts, q, k, v, mask[:, None])
    return result


def block_length(length: int, dtype: DTypeLike) -> int:
    """Return the queries or keys of a block for this device."""
    is_large = _has_large_memory() and dtype == jnp.bfloat16
    return best_block(length, LARGE_BLOCK if is_large else _SMALL_BLOCK)


def best_block(length: int, limit: int) -> int:
    """Return the multiple of 128, at most `limit`, with which all blocks take least time."""
    most = min(limit, -(-length // TPU_LANES) * TPU_LANES)
    sizes = range(most, 0, -TPU_LANES)
    return min(sizes, key=lambda size: -(-length // size) * (size + _TOKENS_OF_BEGINNING))


def _has_large_memory() -> bool:
    return target_device().device_kind in _LARGE_MEMORY


def _operand_dtype(dtype: DTypeLike) -> DTypeLike:
    return jnp.float32 if target_device().device_kind in MULTIPLIES_FLOAT32_ONLY else dtype


def _compute_block(
    counts: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    out: Any,
    greatest: Any,
    total: Any,
    attended: Any,
    *,
    heads: "_Heads",
) -> None:
    """Add one block of keys to the results of one block of queries.

    Args:
        counts: int32 `[b, blocks]`: of each block of keys, how many count.
        greatest: Of each softmax so far, the maximum, the same in all lanes.
        total: The sum of each softmax, split over the lanes.
        attended: `[n, 128]`: the sums of the values.
    """

    @pl.when(pl.program_id(3) == 0)
    def reset() -> None:
        greatest[...] = jnp.full_like(greatest, _LEAST)
        total[...] = jnp.zeros_like(total)
        attended[...] = jnp.zeros_like(attended)

    count, keys = counts[pl.program_id(0), pl.program_id(3)], k.shape[1]
    block = _Block(q, k, v, greatest, total, attended, heads)
    pl.when(count == keys)(lambda: block.add(None))
    pl.when((count > 0) & (count < keys))(lambda: block.add(mask[0] > 0))

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def finish() -> None:
        sums = total[...].sum(axis=1, keepdims=True)  # at least 2 ** 0, or 0 if no key counts
        out[0] = (attended[...] * (1 / jnp.maximum(sums, 1.0))).astype(out.dtype)


class _Heads(NamedTuple):
    """It says how heads are multiplied."""

    operands: DTypeLike
    """It is the dtype of what is multiplied."""
    head_dim: int


class _Block(NamedTuple):
    """It has one block of queries and keys of a head."""

    q: Any
    k: Any
    v: Any
    greatest: Any
    total: Any
    attended: Any
    heads: "_Heads"

    def add(self, mask: jax.Array | None) -> None:
        """Add the keys that count by a mask `[1, keys]`, or all, to the results."""
        values = self._values(mask)
        work = list(self._parts())
        scores = self._scores(work[0], mask)
        for this, following in pairwise(work):
            next_scores = self._scores(following, mask)
            self._add_part(scores, values, this)
            scores = next_scores
        self._add_part(scores, values, work[-1])

    def _parts(self) -> Iterator[slice]:
        queries = self.q.shape[1]
        part = max(n for n in range(TPU_LANES, _PART + 1, TPU_LANES) if queries % n == 0)
        for start in range(0, queries, part):
            yield slice(start, start + part)

    def _values(self, mask: jax.Array | None) -> jax.Array:
        values: jax.Array = self.v[0].astype(self.heads.operands)
        if mask is None:
            return values
        by_key = jnp.broadcast_to(mask.astype(jnp.int32), values.shape[::-1]).T
        return jnp.where(by_key > 0, values, jnp.zeros_like(values))

    def _scores(self, part: slice, mask: jax.Array | None) -> jax.Array:
        """Return `[queries, keys]`."""
        q, k = (x.astype(self.heads.operands) for x in (self.q[0, part, :], self.k[0]))
        scores = jax.lax.dot_general(
            q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        return scores if mask is None else jnp.where(mask, scores, _LEAST)

    def _add_part(self, scores: jax.Array, values: jax.Array, part: slice) -> None:
        scale = log2(np.e) / sqrt(self.heads.head_dim)  # of scores, for powers of 2
        before = self.greatest[part]
        now = jnp.maximum(before, scores.max(axis=1, keepdims=True))
        weights = jnp.exp2((scores - now[:, :1]) * scale)
        correction = jnp.exp2((before - now) * scale)
        by_lane = sum(weights[:, n : n + TPU_LANES] for n in range(0, weights.shape[1], TPU_LANES))
        added = jnp.dot(
            weights.astype(self.heads.operands), values, preferred_element_type=jnp.float32
        )
        self.greatest[part] = now
        self.total[part] = correction * self.total[part] + by_lane
        self.attended[part] = correction * self.attended[part] + added
