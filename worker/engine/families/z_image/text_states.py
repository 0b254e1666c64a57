"""Encode texts with Qwen3 for Z-Image: see `TextEncoding` in `sampling/denoiser_protocol.py`."""

from dataclasses import dataclass
from typing import cast

import jax
from flax import nnx
from jax.typing import DTypeLike

from imagefleet.worker.engine.networks.qwen3_text import Qwen3Text
from imagefleet.worker.engine.sampling.arrays import Weights


@dataclass(frozen=True)
class TextStates:
    """The structure of the text encoder; its weights are arguments."""

    encoder: nnx.GraphDef[nnx.Module]
    width: int
    dtype: DTypeLike
    texts: int = 2

    def __call__(self, weights: Weights, ids: jax.Array) -> jax.Array:
        """Return the hidden states that the transformer reads, `[n, t, width]`."""
        (states,) = cast(Qwen3Text, nnx.merge(self.encoder, weights.text[0]))(ids)
        return states.astype(self.dtype)
