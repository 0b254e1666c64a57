"""Compute attention with the fastest implementation of the device.

Input: queries, keys and values as the networks project them. Output: the attended values in the
same layout. It does not depend on the networks, and they do not depend on which backend ran.

So far it ran on CPU only. A test compares the TPU kernel with the formula in Pallas' interpreter.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from imagefleet.worker.engine.kernels.attention_backend import (
    MAX_SCORE_BYTES,
    MULTIPLIES_FLOAT32_ONLY,
    TPU_LANES,
    AttentionSpec,
    Backend,
    choose_backend,
)
from imagefleet.worker.engine.placement.mesh import compute_on_each_device, target_device

_TPU_BLOCK_QUERIES: Final = 512
"""The TPU kernel takes at most this many queries at once. With 128 queries and 128 keys, the
default of Pallas, a layer of 4096 pixels with 8 heads takes 6.5 million cycles on v5e by the
compiler's schedule; with 512 and 1024 it takes 1.4 million. Larger blocks gain nothing. With heads
that are wider than 128 the kernel takes half as many queries, since the memory of its core holds no
more."""
_TPU_BLOCK_KEYS: Final = 1024
"""The TPU kernel takes at most this many keys at once."""
_LEAST_SCORE: Final = float(np.finfo(np.float32).min)
"""A masked key has this score. It is finite, since free slots of a stream have masked keys only."""


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    heads: int,
    causal: bool = False,
    mask: jax.Array | None = None,
    backend: Backend | None = None,
) -> jax.Array:
    """Compute softmax(q kᵀ / √d) v per head (Vaswani et al. 2017, equation 1).

    The softmax is in float32.

    Args:
        query: `[batch, n, heads * d]`.
        key: `[batch, m, heads * d]`.
        value: `[batch, m, heads * d]`.
        heads: Number of heads; must divide the last axis.
        causal: Whether position i sees only positions <= i.
        mask: bool `[batch, m]`: the keys that count; the others and their values may be NaN.
            None: all count.
        backend: None: `choose_backend` for the device that the program is for, `target_device`.

    Returns:
        `[batch, n, heads * d]`.
    """
    spec = AttentionSpec(
        queries=query.shape[1],
        keys=key.shape[1],
        heads=heads,
        head_dim=query.shape[2] // heads,
        dtype=query.dtype,
        causal=causal,
        masked=mask is not None,
    )
    compute = _COMPUTE[backend or choose_backend(target_device().platform, spec)]
    if mask is None:
        return compute(query, key, value, spec)
    return compute(query, key, value, spec, mask=mask)


def _split(x: jax.Array, heads: int) -> jax.Array:
    """Reshape `[b, n, heads * d]` to `[b, n, heads, d]`."""
    return x.reshape(*x.shape[:2], heads, -1)


def _fold(x: jax.Array, heads: int) -> jax.Array:
    """Reshape `[b, n, heads * d]` to `[b * heads, n, d]`."""
    batch, length, channels = x.shape
    return _split(x, heads).swapaxes(1, 2).reshape(batch * heads, length, channels // heads)


def _unfold(x: jax.Array, heads: int) -> jax.Array:
    """Reshape `[b * heads, n, d]` to `[b, n, heads * d]`."""
    folded, length, head_dim = x.shape
    split = x.reshape(folded // heads, heads, length, head_dim).swapaxes(1, 2)
    return split.reshape(folded // heads, length, heads * head_dim)


_FLOAT32_SUMS: Final = {"preferred_element_type": jnp.float32}


def _attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    first: jax.Array | int = 0,
    causal: bool,
    mask: jax.Array | None,
) -> jax.Array:
    """Attend with folded queries, the first of which is at position `first`.

    `mask` is bool `[b * heads, 1, m]`. What it excludes may be NaN.
    """
    scale = q.shape[-1] ** -0.5
    if q.dtype == jnp.float32:
        scores = jnp.einsum("bnd,bmd->bnm", q * scale, k, **_FLOAT32_SUMS)
    else:  # a scaled query would be rounded once more
        scores = jnp.einsum("bnd,bmd->bnm", q, k, **_FLOAT32_SUMS) * scale
    if causal:
        positions = first + jnp.arange(q.shape[1])
        scores = jnp.where(positions[:, None] >= jnp.arange(k.shape[1]), scores, -jnp.inf)
    if mask is not None:
        scores = jnp.where(mask, scores, _LEAST_SCORE)
        v = jnp.where(mask.mT, v, jnp.zeros_like(v))
    # The softmax is divided by its sum after the product with the values. This saves a pass over
    # all scores, which is a sixth of a step of a small UNet on CPU.
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    attended = jnp.einsum("bnm,bmd->bnd", weights.astype(v.dtype), v, **_FLOAT32_SUMS)
    return (attended / weights.sum(axis=-1, keepdims=True)).astype(v.dtype)


def _fold_mask(mask: jax.Array | None, heads: int) -> jax.Array | None:
    """Repeat `[b, m]` for the heads: `[b * heads, 1, m]`."""
    return None if mask is None else jnp.repeat(mask[:, None], heads, axis=0)


def _folded(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    spec: AttentionSpec,
    mask: jax.Array | None = None,
) -> jax.Array:
    folded = (_fold(x, spec.heads) for x in (q, k, v))
    by_head = _fold_mask(mask, spec.heads)
    return _unfold(_attend(*folded, causal=spec.causal, mask=by_head), spec.heads)


def _by_head(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    spec: AttentionSpec,
    mask: jax.Array | None = None,
) -> jax.Array:
    attend = partial(_by_head_on_one_device, head_dim=spec.head_dim, causal=spec.causal)
    arguments = (q, k, v) if mask is None else (q, k, v, mask)
    return compute_on_each_device(attend, *arguments, heads=spec.heads)


def _by_head_on_one_device(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None = None,
    *,
    head_dim: int,
    causal: bool,
) -> jax.Array:
    """Attend with one device's rows and heads."""
    heads = q.shape[2] // head_dim
    folded = (*(_fold(x, heads) for x in (q, k, v)), _fold_mask(mask, heads))

    def attend(head: tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]) -> jax.Array:
        *operands, kept = jax.tree.map(lambda x: x[None], head)
        return _attend(*operands, causal=causal, mask=kept)[0]

    return _unfold(jax.lax.map(attend, folded), heads)


def query_block_count(spec: AttentionSpec, limit: int) -> int:
    """Return the smallest number of equal blocks of queries whose scores fit `limit` bytes.

    If no block fits, each query is a block.
    """
    minimum = -(-spec.score_bytes // limit)
    return next(
        n for n in range(min(minimum, spec.queries), spec.queries + 1) if not spec.queries % n
    )


def _by_query_blocks(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    spec: AttentionSpec,
    limit: int | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    count = query_block_count(spec, limit or MAX_SCORE_BYTES[target_device().platform])
    length = spec.queries // count
    q, k, v = (_fold(x, spec.heads) for x in (q, k, v))
    by_head = _fold_mask(mask, spec.heads)
    blocks = q.reshape(q.shape[0], count, length, -1).swapaxes(0, 1)  # [count, b * heads, n, d]

    def attend(block: tuple[jax.Array, jax.Array]) -> jax.Array:
        return _attend(block[0], k, v, first=block[1], causal=spec.causal, mask=by_head)

    out = jax.lax.map(attend, (blocks, length * jnp.arange(count)))
    return _unfold(out.swapaxes(0, 1).reshape(q.shape), spec.heads)


def _cudnn(q: jax.Array, k: jax.Array, v: jax.Array, spec: AttentionSpec) -> jax.Array:
    split = (_split(x, spec.heads) for x in (q, k, v))
    out = jax.nn.dot_product_attention(*split, is_causal=spec.causal, implementation="cudnn")
    return out.reshape(q.shape)


def _flash(q: jax.Array, k: jax.Array, v: jax.Array, spec: AttentionSpec) -> jax.Array:
    flash = partial(_flash_on_one_device, spec=spec)
    if target_device().device_kind in MULTIPLIES_FLOAT32_ONLY:
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    split = (_split(x, spec.heads) for x in (q, k, v))
    out = compute_on_each_device(flash, *split, heads=spec.heads)
    return out.reshape(q.shape).astype(spec.dtype)


def _flash_on_one_device(
    q: jax.Array, k: jax.Array, v: jax.Array, *, spec: AttentionSpec
) -> jax.Array:
    """Run the kernel on one device's rows and heads, `[b, n, heads, d]`."""
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

    keys = largest_block(spec.keys, _TPU_BLOCK_KEYS)
    max_queries = _TPU_BLOCK_QUERIES // (1 if spec.head_dim <= TPU_LANES else 2)
    blocks = BlockSizes(
        block_b=1,
        block_q=largest_block(spec.queries, max_queries),
        block_k_major=keys,
        block_k=keys,
    )
    by_head = (_pad_head(x).swapaxes(1, 2) for x in (q, k, v))
    out: jax.Array = flash_attention(
        *by_head, causal=spec.causal, sm_scale=spec.head_dim**-0.5, block_sizes=blocks
    )
    return out.swapaxes(1, 2)[..., : spec.head_dim]


def largest_block(length: int, limit: int) -> int:
    """Return `length` if it is at most `limit`, else the largest multiple of 128 that divides it
    and is at most `limit`."""
    if length <= limit:
        return length
    blocks = range(TPU_LANES, limit + 1, TPU_LANES)
    return max(block for block in blocks if length % block == 0)


def _pad_head(x: jax.Array) -> jax.Array:
    """Pad heads that are wider than 128 with zeros to a multiple of 128. Zeros change no score."""
    head_dim = x.shape[-1]
    missing = -head_dim % TPU_LANES if head_dim > TPU_LANES else 0
    return jnp.pad(x, [(0, 0)] * 3 + [(0, missing)]) if missing else x


def _wide_heads(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    spec: AttentionSpec,
    mask: jax.Array | None = None,
) -> jax.Array:
    from imagefleet.worker.engine.kernels.wide_attention_kernel import attend_wide_heads

    counts = jnp.ones(k.shape[:2], jnp.bool_) if mask is None else mask
    attend = partial(attend_wide_heads, head_dim=spec.head_dim)
    missing = TPU_LANES - spec.head_dim
    if not missing:
        return compute_on_each_device(attend, q, k, v, counts, heads=spec.heads)
    # Zeros change neither scores nor values.
    filled = (
        jnp.pad(_split(x, spec.heads), [(0, 0)] * 3 + [(0, missing)]).reshape(*x.shape[:2], -1)
        for x in (q, k, v)
    )
    wide = compute_on_each_device(attend, *filled, counts, heads=spec.heads)
    return _split(wide, spec.heads)[..., : spec.head_dim].reshape(q.shape)


_COMPUTE: Final[dict[Backend, Callable[..., jax.Array]]] = {
    Backend.FOLDED: _folded,
    Backend.BY_HEAD: _by_head,
    Backend.QUERY_BLOCKS: _by_query_blocks,
    Backend.CUDNN: _cudnn,
    Backend.FLASH: _flash,
    Backend.WIDE_HEADS: _wide_heads,
}
