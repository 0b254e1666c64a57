"""Compute linear layers of transformers whose output, or input, consists of several parts.

Input: a layer and tokens. Output: the result of the layer, or neighbouring columns of it.

Axes: b rows, n tokens.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.networks.blocks import Layer
from imagefleet.worker.engine.placement.joined_products import add_up_over_devices
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


def project_joined(layer: Layer, *parts: jax.Array) -> jax.Array:
    """Map parts `[b, n, …]` that lie side by side in the input of a layer to its output.

    On TPU, devices that share the weights compute with the columns of the parts that they have, and
    add up their results in one exchange. By output, as weights are placed, each would need all
    columns: of a single block of FLUX.1 five times as many numbers as the result has. Each device
    rounds its sum to bfloat16. Layers with LoRA or with integers as weights are computed by output.
    """
    if isinstance(layer, nnx.Linear) and _adds_up(parts, layer.out_features):
        result = add_up_over_devices(parts, layer.kernel[...])
        return result if layer.bias is None else result + layer.bias[...]
    return layer(parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1))


def _adds_up(parts: Sequence[jax.Array], width: int) -> bool:
    devices = devices_per_copy()
    splits = all(each % devices == 0 for each in (width, *map(_width, parts)))
    return is_bfloat16_on_tpu(parts[0]) and devices > 1 and splits


def _width(x: jax.Array) -> int:
    return x.shape[-1]
