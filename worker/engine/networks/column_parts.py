"""Compute the output of a linear layer in parts, each of which goes to a layer of its own.

Input: a layer and tokens. Output: neighbouring columns of its result. Each number is the same sum,
whether the layer is computed as one product or in parts.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.networks.blocks import Layer
from imagefleet.worker.engine.placement.mesh import devices_per_copy, is_bfloat16_on_tpu


def project_parts(layer: Layer, x: jax.Array, ends: Sequence[int]) -> list[jax.Array]:
    """Map `[…, in]` to parts of `[…, out]`, which end before the columns `ends`, and a last one.

    On TPU each part is a product with some columns of the matrix, which XLA reads in place. It then
    computes what follows beside the product, and writes no columns twice. docs/tpu.md has the
    estimates. Devices that share a matrix hold columns of several parts, so they compute one
    product, as do layers with LoRA or with integers as weights.
    """
    in_parts = is_bfloat16_on_tpu(x) and devices_per_copy() == 1
    if in_parts and isinstance(layer, nnx.Linear) and layer.bias is None:
        return [x @ columns for columns in jnp.split(layer.kernel[...], ends, axis=1)]
    return jnp.split(layer(x), ends, axis=-1)
