"""Encode prompts with the text encoders of a model.

Input: token ids, one sequence for each encoder. Output: hidden states, and the pooled text
embedding if the model has one. It depends on neither text nor the UNet.

Axes: b slots, 2 the negative prompt and the prompt, k chunks of a prompt, n tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.families.stable_diffusion.prompt_chunks import used_tokens, weigh
from imagefleet.worker.engine.networks.clip_text import ClipText, skip_layers
from imagefleet.worker.engine.networks.lora_layers import merge_network


class EncodedPrompt(NamedTuple):
    """It is a prompt as the UNet takes it."""

    hidden: jax.Array
    """They are `[…, k n, d]`."""
    pooled: jax.Array | None
    """It is `[…, p]`, or None if the model has none."""


@dataclass(frozen=True)
class PromptEncoder:
    """The structure of the text encoders; their weights are arguments."""

    networks: tuple[nnx.GraphDef[ClipText], ...]
    force_zeros_for_empty_prompt: bool
    """Whether the states of the negative prompt are zeros if none is given (SDXL)."""
    is_xl: bool
    """Whether the UNet is one of SDXL, which gets the penultimate states and the pooled one."""

    def __call__(
        self,
        weights: Sequence[Params],
        tokens: Sequence[jax.Array],
        has_negative: jax.Array,
        clip_skip: jax.Array,
        lora_scales: jax.Array | None = None,
        token_weights: Sequence[jax.Array] | None = None,
        used_chunks: jax.Array | None = None,
    ) -> EncodedPrompt:
        """Encode the prompts.

        Args:
            weights: Of each text encoder.
            tokens: Of each text encoder, int32 `[b, 2, k, n]`. Each chunk is encoded as a prompt of
                its own. The pooled state is that of the first.
            has_negative: bool `[b]`: whether a negative prompt is given. One that is given is
                encoded even if it is empty, as in diffusers.
            clip_skip: int32 `[b]`: how many last layers the prompt skips. As in diffusers, the
                negative prompt and the pooled state skip none.
            lora_scales: float32 `[b, LoRA]`. None if no layer has LoRA.
            token_weights: float32, as `tokens`. None if prompts have no weights.
            used_chunks: int32 `[b]`: the first chunks of each prompt, which count for weights. None
                if prompts have none.

        Returns:
            The states with the leading axes `[b, 2]`.
        """
        encoders = [
            merge_network(*parts, lora_scales) for parts in zip(self.networks, weights, strict=True)
        ]
        slots, pair, chunks, length = tokens[0].shape
        states = [
            encode(ids.reshape(-1, length)) for encode, ids in zip(encoders, tokens, strict=True)
        ]
        skip = jnp.stack([jnp.zeros_like(clip_skip), clip_skip], axis=1).reshape(-1)
        skip = jnp.repeat(skip, chunks)  # [b * 2 * k]
        # Stable Diffusion 1 and 2 have one encoder and use its last states, normalised. SDXL has
        # two, its refiner one; they concatenate the penultimate states of all (Podell et al. 2023,
        # section 2.1).
        if not self.is_xl:
            chosen = skip_layers(states[0].hidden_states, skip)
            hidden, pooled = [encoders[0].final_layer_norm(chosen)], None
        else:
            hidden = [skip_layers(state.hidden_states[:-1], skip) for state in states]
            # As in diffusers, the first encoder with a projection has the pooled state.
            pooled = next(state.pooled for state in states if state.pooled is not None)
            pooled = pooled.reshape(slots, pair, chunks, -1)[:, :, 0]
        hidden = [each.reshape(slots, pair, chunks * length, -1) for each in hidden]
        if token_weights is not None and used_chunks is not None:
            used = used_tokens(used_chunks, chunks, length)
            hidden = [
                weigh(states, each.reshape(slots, pair, -1), used)
                for states, each in zip(hidden, token_weights, strict=True)
            ]
        prompt = EncodedPrompt(jnp.concatenate(hidden, axis=-1), pooled)
        if self.force_zeros_for_empty_prompt:
            return EncodedPrompt(*_zero_absent_negatives(prompt, has_negative))
        return prompt


def _zero_absent_negatives(prompt: tuple[jax.Array | None, ...], has_negative: jax.Array) -> Any:
    """Set the states of the negative prompt to zero where none is given."""
    is_kept = jnp.stack([has_negative, jnp.ones_like(has_negative)], axis=1)  # [b, 2]

    def zero(x: jax.Array) -> jax.Array:
        return jnp.where(is_kept.reshape(*is_kept.shape, *[1] * (x.ndim - 2)), x, 0)

    return jax.tree.map(zero, prompt)
