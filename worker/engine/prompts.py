"""From tokens to what a UNet reads of a prompt, by a family's text encoders.

Goes in: token ids, for each encoder its own. Comes out: hidden states, and with them the prompt as
a whole where the family has it. Knows no words and no UNet.

Axes: b slots, 2 the negative prompt and the prompt, e encoders, n tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.checkpoint.weights import Arrays
from imagefleet.worker.engine.models.clip_text import ClipText


class Prompt(NamedTuple):
    """A prompt as the UNet reads it."""

    hidden: jax.Array
    """`[…, n, d]`."""
    pooled: jax.Array | None
    """`[…, p]`; None where the family has none."""


@dataclass(frozen=True)
class PromptEncoder:
    """The encoders' structure; their weights are arguments."""

    networks: tuple[nnx.GraphDef[ClipText], ...]
    empty_is_zero: bool
    """Whether a negative prompt without words is zeros instead of what the encoders make of it:
    `force_zeros_for_empty_prompt` of SDXL."""

    def __call__(self, weights: Sequence[Arrays], tokens: jax.Array) -> Prompt:
        """`tokens [b, 2, e, n]` to a prompt of leading axes `[b, 2]`."""
        encoders = [nnx.merge(*parts) for parts in zip(self.networks, weights, strict=True)]
        slots, pair, _, length = tokens.shape
        states = [
            encode(tokens[:, :, index].reshape(slots * pair, length))
            for index, encode in enumerate(encoders)
        ]
        # One encoder: Stable Diffusion 1 and 2 read its last states. Two: SDXL reads the
        # last but one of both, side by side (Podell et al. 2023, section 2.1).
        prompt = Prompt(states[0].last, None)
        if len(states) > 1:
            sides = [state.penultimate for state in states]
            prompt = Prompt(jnp.concatenate(sides, axis=-1), states[-1].pooled)
        by_slot = jax.tree.map(lambda x: x.reshape(slots, pair, *x.shape[1:]), tuple(prompt))
        if self.empty_is_zero:
            by_slot = _silenced(by_slot, states[-1].end.reshape(slots, pair) == 1)
        return Prompt(*by_slot)


def _silenced(prompt: tuple[jax.Array | None, ...], wordless: jax.Array) -> Any:
    """Zeros for negative prompts without words; `wordless [b, 2]`."""
    negative = jnp.arange(wordless.shape[1]) < wordless.shape[1] - 1  # the prompt is the last
    silent = wordless & negative

    def silence(x: jax.Array) -> jax.Array:
        return jnp.where(silent.reshape(*silent.shape, *[1] * (x.ndim - 2)), 0, x)

    return jax.tree.map(silence, prompt)
