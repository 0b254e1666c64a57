"""Combine the outputs of Z-Image's transformer for the prompt and for the negative prompt.

It is the guidance of diffusers' ZImagePipeline. Its scale is the w of Ho & Salimans 2022, equation
6: 0 is no guidance. The scale of Stable Diffusion is w + 1; see `sampling.guidance`.

Axes: b slots, h w latent size, c latent channels.
"""

import jax
import jax.numpy as jnp


def add_guidance(outputs: jax.Array, guidance: jax.Array) -> jax.Array:
    """Combine the outputs of each slot, in float32.

    Args:
        outputs: `[b, r, h, w, c]`. A single row is the output for the prompt. Two rows are the
            outputs for the negative prompt and for the prompt.
        guidance: The guidance scale `[b]`. A slot whose scale is 0 or less gets the last output.
    """
    prompted = outputs[:, -1]
    if outputs.shape[1] == 1:
        return prompted
    scale = guidance[:, None, None, None]
    return jnp.where(scale > 0, prompted + scale * (prompted - outputs[:, 0]), prompted)
