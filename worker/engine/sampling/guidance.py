"""Combine the outputs of a denoiser with and without the prompt.

Input: outputs, float32. Output: one output for each slot. It depends neither on the denoiser nor
on the schedulers. The scale is that of Saharia et al. 2022 (Imagen), 1 for no guidance. It is w + 1
with the w of Ho & Salimans 2022, which some families have in its place, such as Z-Image.

Axes: b slots, h w latent size, c latent channels.
"""

import jax
import jax.numpy as jnp


def apply_guidance(
    outputs: jax.Array,
    guidance: jax.Array,
    rescale: jax.Array,
    image_guidance: jax.Array | None,
) -> jax.Array:
    """Combine the outputs of each slot, in float32.

    Args:
        outputs: `[b, r, h, w, c]`. A single row is the output with the prompt. Two rows are the
            outputs without and with the prompt. Three rows are the outputs without image and
            prompt, with the image, and with both.
        guidance: The guidance scale `[b]`. A slot whose scale is 1 or less gets the last output.
        rescale: The share of the guided output that is scaled back to the deviation of the last
            output `[b]`, 0 to 1.
        image_guidance: The scale of the guidance by the image `[b]`, for three rows. As in
            diffusers, a slot whose scale is below 1 gets the last output.
    """
    *others, conditional = (outputs[:, row] for row in range(outputs.shape[1]))
    if not others:
        return conditional
    scale = guidance[:, None, None, None]
    is_guided = scale > 1
    if image_guidance is None:  # Saharia et al. 2022, equation 2
        (without,) = others
        guided = without + scale * (conditional - without)
    else:  # Brooks et al. 2023, equation 3
        without, image = others
        image_scale = image_guidance[:, None, None, None]
        guided = without + scale * (conditional - image) + image_scale * (image - without)
        is_guided &= image_scale >= 1
    guided = _rescaled(guided, conditional, rescale[:, None, None, None])
    return jnp.where(is_guided, guided, conditional)


def _rescaled(guided: jax.Array, conditional: jax.Array, share: jax.Array) -> jax.Array:
    """Scale back a share of the guided output (Lin et al. 2023, equations 15 and 16).

    The deviation is PyTorch's: that of a sample, not of a population.
    """
    deviations = [
        jnp.std(output, axis=(1, 2, 3), ddof=1, keepdims=True) for output in (conditional, guided)
    ]
    rescaled = guided * (deviations[0] / deviations[1])
    return jnp.where(share > 0, share * rescaled + (1 - share) * guided, guided)
