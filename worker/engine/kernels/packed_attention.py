"""Compute attention on TPUs with the heads side by side in the registers.

Input: queries, keys and values whose heads are packed, and the sizes of a layer. Output: the
attended values, packed like the values. Layers and weights are the same as for other devices.

A TPU's registers have 128 columns, *lanes*. Pallas' kernel takes one head after another, so heads
of 40 channels are copied into registers of their own before it, and back after it. Here the
projections write three heads of 40 into each 128 lanes of the keys and 128 rows of the queries,
and each head of the values into rows of its own. `packed_attention_kernel` reads them there.
docs/tpu.md has the estimates of the TPU compiler. No TPU has run it.
"""

from functools import partial
from typing import Final

import jax
import jax.numpy as jnp

from imagefleet.worker.engine.kernels.attention_backend import TPU_LANES, AttentionSpec
from imagefleet.worker.engine.kernels.head_packing import HeadPacking
from imagefleet.worker.engine.placement.mesh import (
    compute_on_each_device,
    devices_per_copy,
    target_device,
)
from imagefleet.worker.engine.placement.rows import compute_on_parts, split_rows

_MAX_KEYS_OF_ODD_BLOCK: Final = TPU_LANES
"""At most this many keys may be one block whose length is no multiple of 128. A text has 77
keys."""


def packing_of(spec: AttentionSpec, parts: int = 1) -> HeadPacking | None:
    """Return how `parts` TPUs pack the heads of a layer. None means that they do not pack them."""
    if spec.heads % parts:
        return None
    packing = HeadPacking(heads=spec.heads, head_dim=spec.head_dim, parts=parts)
    has_blocks = spec.queries % TPU_LANES == 0 and (
        spec.keys % TPU_LANES == 0 or spec.keys <= _MAX_KEYS_OF_ODD_BLOCK
    )
    is_packed = (
        has_blocks
        and packing.fills_lanes
        and not (spec.masked or spec.causal)
        and spec.dtype in (jnp.bfloat16, jnp.float32)
    )
    return packing if is_packed else None


def find_packing(x: jax.Array, *, keys: int, heads: int) -> HeadPacking | None:
    """Return how the device of the program being traced packs the heads of a layer.

    Args:
        x: `[b, n, heads * head_dim]`: what the queries are projected from.
        keys: Their number for each image. All of them count.
        heads: Of the layer.

    Returns:
        None: the device does not compute this layer in this way.
    """
    _, queries, channels = x.shape
    if target_device().platform != "tpu":
        return None
    head_dim = channels // heads
    return packing_of(
        AttentionSpec(queries=queries, keys=keys, heads=heads, head_dim=head_dim, dtype=x.dtype),
        parts=devices_per_copy(),
    )


def attend_packed(q: jax.Array, k: jax.Array, v: jax.Array, packing: HeadPacking) -> jax.Array:
    """Compute softmax(ln 2 · q kᵀ) v per head, with the images and the heads that each device has.

    Args:
        q: `[batch, lanes, n]`: the queries by `pack_lanes`, transposed, times `query_scale`.
        k: `[batch, m, lanes]`: the keys by `pack_lanes`.
        v: `[batch, rows, m]`: the values by `pack_rows`, transposed.
        packing: Of the heads.

    Returns:
        `[batch, rows, n]`: like the values. The spare rows are not 0.
    """
    from imagefleet.worker.engine.kernels.packed_attention_kernel import attend_by_kernel

    compute = partial(attend_by_kernel, packing=packing.part)
    if packing.parts == 1:
        return compute_on_each_device(compute, q, k, v)
    attended = compute_on_parts(compute, q, k, v, axes=(1, 2, 1), result_axis=1)
    # The next product reads all heads. If XLA split it by heads, it would add up sums in float32.
    return split_rows(attended)
