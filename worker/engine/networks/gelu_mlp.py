"""Define the feed-forward layer of transformers that have no gate in it.

Input and output are tokens `[b, n, d]`.
"""

from typing import ClassVar

import jax
from flax import nnx

from imagefleet.worker.engine.checkpoint.weights import RenameRules
from imagefleet.worker.engine.networks.blocks import linear
from imagefleet.worker.engine.networks.column_parts import project_joined


def tanh_gelu(x: jax.Array) -> jax.Array:
    """Return GELU by its tanh (Hendrycks & Gimpel 2016)."""
    return jax.nn.gelu(x, approximate=True)


class GeluMlp(nnx.Module):
    """It is diffusers' FeedForward with `gelu-approximate`."""

    weight_rules: ClassVar[RenameRules] = (
        (r"\b(ff|ff_context)\.linear_in\b", r"\1.net.0.proj"),
        (r"\b(ff|ff_context)\.linear_out\b", r"\1.net.2"),
    )
    """They name its weights in the checkpoints of networks that have it as `ff`."""

    def __init__(self, width: int, inner_width: int) -> None:
        self.linear_in = linear(width, inner_width)
        self.linear_out = linear(inner_width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return project_joined(self.linear_out, tanh_gelu(self.linear_in(x)))
