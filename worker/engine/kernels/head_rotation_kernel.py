"""Normalise heads of 128 channels and rotate them on TPU with a kernel written in Pallas.

Input: queries or keys as the layers project them. Output: what attention reads, in the same layout.
It depends on no network.

XLA brings heads into an axis of their own for this, and copies queries, keys and the weights that
project them between layouts. A head fills the 128 lanes of a register, so here nothing is copied.
docs/tpu.md has the estimates. A test compares it with the formula in Pallas' interpreter.
"""

from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from imagefleet.worker.engine.kernels.attention_backend import TPU_LANES
from imagefleet.worker.engine.placement.mesh import (
    compute_on_each_device,
    is_bfloat16_on_tpu,
    target_device,
)

KERNEL_NAME: Final = "head_rotation"
"""The programs contain this name, so that `tools.tpu` finds the kernel there."""
_DEVICES: Final = ("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e")
"""Other kinds of devices were not asked."""
_MAX_TOKENS: Final = 256
"""A block has at most this many tokens, with all of their heads."""


def rotates_by_kernel(x: jax.Array, heads: int) -> bool:
    """Return whether the device of the program being traced uses the kernel for `x [b, n, c]`."""
    is_wide = x.shape[-1] == heads * TPU_LANES
    return is_wide and is_bfloat16_on_tpu(x) and target_device().device_kind in _DEVICES


def rotate_heads(
    x: jax.Array,
    scale: jax.Array,
    cosines: jax.Array,
    sines: jax.Array,
    *,
    heads: int,
    epsilon: float,
) -> jax.Array:
    """Normalise each head by its root mean square, and rotate the pairs that lie side by side.

    Args:
        x: `[b, n, heads * 128]`.
        scale: `[128]`: the channels of each normalised head are multiplied by it.
        cosines: float32 `[b or 1, n, 64]`: those of the angles of each token.
        sines: The same.
        heads: Number of heads.
        epsilon: Of the norm.
    """
    tables = (jnp.repeat(cosines, 2, axis=-1), jnp.repeat(sines, 2, axis=-1))
    by_slot = len(cosines) > 1
    return compute_on_each_device(
        partial(_rotate_on_one_device, epsilon=epsilon),
        x,
        scale[None].astype(jnp.float32),
        *tables,
        whole=(1,) if by_slot else (1, 2, 3),
        without_heads=(2, 3),
        heads=heads,
    )


def _rotate_on_one_device(
    x: jax.Array, scale: jax.Array, cosines: jax.Array, sines: jax.Array, *, epsilon: float
) -> jax.Array:
    batch, length, channels = x.shape
    tokens = min(_MAX_TOKENS, length)
    has_rows = len(cosines) > 1
    of_tokens = pl.BlockSpec((1, tokens, channels), lambda b, i: (b, i, 0))
    of_angles = pl.BlockSpec((1, tokens, TPU_LANES), lambda b, i: (b if has_rows else 0, i, 0))
    result: jax.Array = pl.pallas_call(
        partial(_rotate_block, epsilon=epsilon),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),  # type: ignore[no-untyped-call]
        grid=(batch, pl.cdiv(length, tokens)),
        in_specs=[
            of_tokens,
            pl.BlockSpec((1, TPU_LANES), lambda b, i: (0, 0)),
            of_angles,
            of_angles,
        ],
        out_specs=of_tokens,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(
            flops=10 * x.size, bytes_accessed=2 * x.nbytes, transcendentals=x.size // TPU_LANES
        ),
        name=KERNEL_NAME,
    )(x, scale, cosines, sines)
    return result


def _rotate_block(
    x: Any, scale: Any, cosines: Any, sines: Any, out: Any, *, epsilon: float
) -> None:
    is_first = jax.lax.broadcasted_iota(jnp.int32, cosines.shape[1:], 1) % 2 == 0
    signed_sines = jnp.where(is_first, -sines[0], sines[0])
    for start in range(0, x.shape[2], TPU_LANES):
        wide = x[0, :, start : start + TPU_LANES].astype(jnp.float32)
        square = jnp.square(wide).mean(axis=1, keepdims=True)
        head = wide * jax.lax.rsqrt(square + epsilon) * scale[...]
        following, preceding = pltpu.roll(head, TPU_LANES - 1, 1), pltpu.roll(head, 1, 1)
        partners = jnp.where(is_first, following, preceding)
        rotated = head * cosines[0] + partners * signed_sines
        out[0, :, start : start + TPU_LANES] = rotated.astype(out.dtype)
