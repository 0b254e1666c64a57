"""Combine the outputs of a UNet with and without the prompt.

Goes in: outputs, float32. Comes out: one output for each slot. It knows no UNet and no scheduler.

Axes: b slots, h w latent size, c latent channels.
"""

import jax
import jax.numpy as jnp


def apply_guidance(
    outputs: jax.Array, guidance: jax.Array, image_guidance: jax.Array | None
) -> jax.Array:
    """Combine the outputs of each slot, in float32.

    Args:
        outputs: `[b, r, h, w, c]`. Of one row, it is the output with the prompt; of two, those
            without and with the prompt; of three, those without image and prompt, with the image,
            and with both.
        guidance: The guidance scale `[b]`. A slot whose scale is 1 or less gets the last output.
        image_guidance: The scale of the guidance by the image `[b]`, for three rows. As in
            diffusers, a slot whose scale is below 1 gets the last output.
    """
    *others, conditional = (outputs[:, row] for row in range(outputs.shape[1]))
    scale = guidance[:, None, None, None]
    if not others:
        return conditional
    if image_guidance is None:  # Ho & Salimans 2022, equation 6
        (without,) = others
        return jnp.where(scale > 1, without + scale * (conditional - without), conditional)
    without, image = others  # Brooks et al. 2023, equation 3
    image_scale = image_guidance[:, None, None, None]
    guided = without + scale * (conditional - image) + image_scale * (image - without)
    return jnp.where((scale > 1) & (image_scale >= 1), guided, conditional)
