"""Choose which feed-forward layers a TPU computes with `feed_forward_kernel`, and run it.

Input: the pixels of a transformer block and the weights of its last part. Output: the pixels after
that part. Layers and weights are the same as for every other device.

The kernel follows the estimates of the TPU compiler (docs/tpu.md). No TPU has run it. A test
compares it with the formula in Pallas' interpreter.
"""

from functools import partial
from typing import Final

import jax
import jax.numpy as jnp

from imagefleet.worker.engine.kernels.attention_backend import TPU_LANES
from imagefleet.worker.engine.kernels.feed_forward_spec import (
    CHUNKS,
    Activation,
    FeedForwardWeights,
    block_pixels,
)
from imagefleet.worker.engine.placement.mesh import (
    compute_on_each_device,
    devices_per_copy,
    images_on_device,
    target_device,
)

_V5E: Final = ("TPU v5 lite", "TPU v5e")
_V6E: Final = ("TPU v6 lite", "TPU v6e")
_MIN_BLOCK_PIXELS: Final = 512
"""With fewer, reading the weights takes longer than the products."""


def uses_kernel(x: jax.Array, hidden: int) -> bool:
    """Return whether the device of the program being traced uses the kernel.

    Args:
        x: `[b, n, c]`: the pixels.
        hidden: The width of the hidden values.
    """
    _, length, channels = x.shape
    kind = target_device().device_kind
    suits_v5e = kind in _V5E and channels % 64 == 0
    suits_v6e = kind in _V6E and channels % TPU_LANES == 0
    if not (suits_v5e or suits_v6e) or x.dtype != jnp.bfloat16 or devices_per_copy() > 1:
        return False
    has_chunks = any(hidden % chunk == 0 for chunk in CHUNKS)
    pixels = images_on_device(x) * length
    return has_chunks and block_pixels(pixels, channels) >= _MIN_BLOCK_PIXELS


def add_feed_forward(
    x: jax.Array, weights: FeedForwardWeights, *, epsilon: float, activation: Activation
) -> jax.Array:
    """Compute x + (value · activation(gate)) W₂ + b₂, where [value, gate] = norm(x) W₁ + b₁.

    Args:
        x: `[b, n, c]`: the pixels, of which each device has its own.
        weights: Of the layers.
        epsilon: Of the norm.
        activation: Of the gates, float32.

    Returns:
        `[b, n, c]`.
    """
    from imagefleet.worker.engine.kernels.feed_forward_kernel import feed_forward_by_kernel

    compute = partial(feed_forward_by_kernel, epsilon=epsilon, activation=activation)
    return compute_on_each_device(compute, x, weights, whole=[1])
