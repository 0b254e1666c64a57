"""Count the FLOPs that an image takes, from the configs of its model.

Input: configs and a shape. Output: the FLOPs of each stage. Nothing is compiled.
"""

from collections.abc import Mapping
from typing import Final

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.z_image.configs import (
    GUIDED_ROWS,
    TEXT_ENCODER,
    TEXT_LENGTH,
    TRANSFORMER,
    VAE,
    Configs,
)
from imagefleet.worker.engine.families.z_image.transformer import RefinedText, Transformer
from imagefleet.worker.engine.networks.matmul_flops import (
    ImageFlops,
    abstract_array,
    call_of,
    matmul_flops,
    network_flops,
)
from imagefleet.worker.engine.networks.peak_shares import PeakShares
from imagefleet.worker.engine.networks.vae import Vae

_PEAK_SHARES: Final[Mapping[str, PeakShares]] = {
    name: PeakShares(
        step_of_teraflop=step, step_growth=0.0, step_flops=(110e12, 130e12), decode=decode
    )
    for name, step, decode in (("v5e", 0.76, 0.76), ("v6e", 0.58, 0.35))
}
"""They follow from the compiler's estimates for the blocks of one image of 1024x1024 without
guidance, of which a step with guidance has two, and for the decoder of Stable Diffusion XL, which
has the same layers."""


def image_flops(configs: Configs, networks: Mapping[str, nnx.Module], shape: Shape) -> ImageFlops:
    """Count the FLOPs of an image of this shape. `networks` are from `FamilyModel.networks`."""
    rows, factor = GUIDED_ROWS, configs.vae.downsampling
    size = (shape.height // factor, shape.width // factor, configs.vae.latent_channels)
    tokens = abstract_array(rows, TEXT_LENGTH, dtype=jnp.int32)
    states = abstract_array(rows, TEXT_LENGTH, configs.text_encoder.hidden_size)
    lengths = abstract_array(rows, dtype=jnp.int32)
    refine = call_of(networks[TRANSFORMER], Transformer.refine_text, states, lengths)
    text: RefinedText = jax.eval_shape(*refine)
    times = abstract_array(rows, dtype=jnp.float32)
    latents = abstract_array(rows, *size)
    return ImageFlops(
        text=network_flops(networks[TEXT_ENCODER], tokens) + matmul_flops(*refine),
        step=network_flops(networks[TRANSFORMER], latents, times, text),
        decode=matmul_flops(*call_of(networks[VAE], Vae.decode, abstract_array(1, *size))),
        peak_shares=_PEAK_SHARES,
    )
