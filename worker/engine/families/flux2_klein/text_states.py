"""Encode texts for FLUX.2 klein: see `TextEncoding` in `sampling/denoiser_protocol.py`."""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
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
    texts: int
    """A distilled model has 1: it reads no negative prompts."""

    def __call__(self, weights: Weights, ids: jax.Array) -> jax.Array:
        """Return the hidden states that the transformer reads, side by side: `[n, t, width]`."""
        states = cast(Qwen3Text, nnx.merge(self.encoder, weights.text[0]))(ids)
        return jnp.concatenate(states, axis=-1).astype(self.dtype)
