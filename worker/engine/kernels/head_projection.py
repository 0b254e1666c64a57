"""Choose where a TPU projects pixels to packed heads with `head_projection_kernel`, and run it.

Input: the pixels of a layer, the weights of its norm and of its projections. Output: the
projections. The kernel follows the estimates of the TPU compiler (docs/tpu.md). No TPU has run it.
A test compares it with the formula in Pallas' interpreter.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp

from imagefleet.worker.engine.kernels.head_projection_spec import HeadProjection
from imagefleet.worker.engine.placement.mesh import (
    compute_on_each_device,
    devices_per_copy,
    target_device,
)

_DEVICES: Final = ("TPU v5 lite", "TPU v5e")
"""Other kinds of devices were not asked."""
_MAX_CHANNELS: Final = 320
"""Wider layers were not asked. Their weights would need more of the core's memory."""
_MAX_LORA_COLUMNS: Final = 128
"""More were not asked. They would need more of the core's memory, too."""


def projects_by_kernel(x: jax.Array, lora_columns: int = 0) -> bool:
    """Return whether the device of the program being traced uses the kernel for such pixels.

    Args:
        x: The pixels.
        lora_columns: The largest sum of the ranks of all LoRA beside one projection.
    """
    is_narrow = x.shape[-1] <= _MAX_CHANNELS and lora_columns <= _MAX_LORA_COLUMNS
    is_asked = target_device().device_kind in _DEVICES and is_narrow
    return is_asked and x.dtype == jnp.bfloat16 and devices_per_copy() == 1


def project_heads(
    x: jax.Array,
    norm: tuple[jax.Array, jax.Array],
    projections: Sequence[HeadProjection],
    scales: Sequence[jax.Array | None],
    *,
    epsilon: float,
) -> list[jax.Array]:
    """Normalise `x [b, n, c]` and project it, with the images that each device has.

    Args:
        x: The pixels.
        norm: The scale and the shift of a layer norm, `[c]` each.
        projections: Their columns are those of packed heads.
        scales: For each projection with LoRA, the scales of their columns, float32 `[b, k]`.
        epsilon: Of the norm.
    """
    from imagefleet.worker.engine.kernels.head_projection_kernel import project_by_kernel

    compute = partial(project_by_kernel, epsilon=epsilon)
    operands = (x, norm, list(projections), list(scales))
    return compute_on_each_device(compute, *operands, whole=[1, 2])
