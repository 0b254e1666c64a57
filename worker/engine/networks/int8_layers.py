"""Define linear layers whose matrices are integers of 8 bits times scales.

Only weights are rounded: a layer computes in the dtype of its input, with the integers as numbers
of it, which are exact in bfloat16 too. `worker.engine.checkpoint.int8_weights` rounds.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.networks.unset_weights import ones, unset


class Int8Linear(nnx.Module):
    """It is a linear layer with a scale for each output channel (Dettmers et al. 2022, section
    2.1)."""

    def __init__(self, layer: nnx.Linear) -> None:
        """`layer` is the one that it replaces."""
        self.kernel = nnx.Param(unset(None, (layer.in_features, layer.out_features), jnp.int8))
        self.scales = nnx.Param(ones(layer.out_features))
        self.bias = layer.bias

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[…, in]` to `[…, out]`."""
        scaled = (x @ self.kernel[...].astype(x.dtype)) * self.scales[...]
        return scaled if self.bias is None else scaled + self.bias[...]


def round_blocks(network: nnx.Module) -> None:
    """Replace the linear layers of the blocks that a network repeats. All others, which come once,
    keep their weights."""
    for path, module in list(nnx.iter_modules(network)):
        if not any(isinstance(part, int) for part in path):
            continue
        for name, layer in list(nnx.iter_children(module)):
            if isinstance(layer, nnx.Linear):
                setattr(module, str(name), Int8Linear(layer))
