"""Encode texts with T5, as several families do: see `TextEncoding` in
`sampling/denoiser_protocol.py`.
"""

from dataclasses import dataclass
from typing import cast

import jax
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.worker.engine.networks.t5_text import T5Text
from imagefleet.worker.engine.sampling.arrays import Weights


@dataclass(frozen=True)
class T5States:
    """It has the structure of the text encoder; its weights are arguments."""

    encoder: nnx.GraphDef[nnx.Module]
    width: int
    dtype: DTypeLike
    texts: int

    def __call__(self, weights: Weights, ids: jax.Array) -> jax.Array:
        """Return the states that the transformer reads, `[n, t, width]`."""
        states = cast(T5Text, nnx.merge(self.encoder, weights.text[0]))(ids)
        return states.astype(self.dtype)
