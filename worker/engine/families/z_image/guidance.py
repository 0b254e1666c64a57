"""Combine the outputs of Z-Image's transformer for the prompt and for the negative prompt.

It is the guidance of diffusers' ZImagePipeline. Its scale is the w of Ho & Salimans 2022, equation
6: 0 is no guidance. The scale of Stable Diffusion is w + 1; see `sampling.guidance`.

Axes: b slots, h w latent size, c latent channels.
"""

import jax
import jax.numpy as jnp


def add_guidance(outputs: jax.Array, guidance: jax.Array, normalization: jax.Array) -> jax.Array:
    """Combine the outputs of each slot, in float32.

    Args:
        outputs: `[b, r, h, w, c]`. A single row is the output for the prompt. Two rows are the
            outputs for the negative prompt and for the prompt.
        guidance: The guidance scale `[b]`. A slot whose scale is 0 or less gets the last output.
        normalization: diffusers' `cfg_normalization` `[b]`: the result has at most this many times
            the norm of the output for the prompt. 0 means that its norm has no limit.
    """
    prompted = outputs[:, -1]
    if outputs.shape[1] == 1:
        return prompted
    scale = guidance[:, None, None, None]
    guided = prompted + scale * (prompted - outputs[:, 0])
    most = _norms(prompted) * normalization[:, None, None, None]
    norms = _norms(guided)
    is_too_large = (most > 0) & (norms > most)
    guided = jnp.where(is_too_large, guided * (most / norms), guided)
    return jnp.where(scale > 0, guided, prompted)


def _norms(outputs: jax.Array) -> jax.Array:
    """Return the Euclidean norm of each slot, `[b, 1, 1, 1]`."""
    return jnp.sqrt(jnp.sum(outputs * outputs, axis=(1, 2, 3), keepdims=True))
