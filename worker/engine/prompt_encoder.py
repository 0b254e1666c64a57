"""Encode prompts with the text encoders of a model.

Goes in: token ids, one sequence for each encoder. Comes out: hidden states, and the pooled text
embedding if the model has one. It knows no text and no UNet.

Axes: b slots, 2 the negative prompt and the prompt, e encoders, n tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.models.clip_text import ClipText


class EncodedPrompt(NamedTuple):
    """A prompt as the UNet takes it."""

    hidden: jax.Array
    """`[…, n, d]`."""
    pooled: jax.Array | None
    """`[…, p]`; None if the model has none."""


@dataclass(frozen=True)
class PromptEncoder:
    """The structure of the text encoders; their weights are arguments."""

    networks: tuple[nnx.GraphDef[ClipText], ...]
    force_zeros_for_empty_prompt: bool
    """Whether the states of an empty negative prompt are zeros (SDXL's model_index.json)."""

    def __call__(self, weights: Sequence[Params], tokens: jax.Array) -> EncodedPrompt:
        """Encode `tokens [b, 2, e, n]`; the result has the leading axes `[b, 2]`."""
        encoders = [nnx.merge(*parts) for parts in zip(self.networks, weights, strict=True)]
        slots, pair, _, length = tokens.shape
        states = [
            encode(tokens[:, :, index].reshape(slots * pair, length))
            for index, encode in enumerate(encoders)
        ]
        # Stable Diffusion 1 and 2 have one encoder and use its last states. SDXL has two and
        # concatenates the penultimate states of both (Podell et al. 2023, section 2.1).
        prompt = EncodedPrompt(states[0].last_hidden_state, None)
        if len(states) > 1:
            penultimate = [state.penultimate_hidden_state for state in states]
            prompt = EncodedPrompt(jnp.concatenate(penultimate, axis=-1), states[-1].pooled)
        by_slot = jax.tree.map(lambda x: x.reshape(slots, pair, *x.shape[1:]), tuple(prompt))
        if self.force_zeros_for_empty_prompt:
            # The end token of an empty prompt follows the start token directly.
            is_empty = states[-1].end_position.reshape(slots, pair) == 1
            by_slot = _zero_empty_negatives(by_slot, is_empty)
        return EncodedPrompt(*by_slot)


def _zero_empty_negatives(prompt: tuple[jax.Array | None, ...], is_empty: jax.Array) -> Any:
    """Set the states of empty negative prompts to zero; `is_empty` is bool `[b, 2]`."""
    is_negative = jnp.arange(is_empty.shape[1]) < is_empty.shape[1] - 1  # the prompt is the last
    zeroed = is_empty & is_negative

    def zero(x: jax.Array) -> jax.Array:
        return jnp.where(zeroed.reshape(*zeroed.shape, *[1] * (x.ndim - 2)), 0, x)

    return jax.tree.map(zero, prompt)
