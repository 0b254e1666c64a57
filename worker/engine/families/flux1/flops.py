"""Count the FLOPs that an image takes, from the configs of its model.

Input: configs and a shape. Output: the FLOPs of each stage. Nothing is compiled.
"""

from collections.abc import Mapping
from typing import Final

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flux1.configs import Configs
from imagefleet.worker.engine.families.flux1.parts import CLIP, T5, TRANSFORMER, VAE
from imagefleet.worker.engine.families.flux1.transformer import Transformer
from imagefleet.worker.engine.networks.matmul_flops import (
    ImageFlops,
    abstract_array,
    call_of,
    matmul_flops,
    network_flops,
)
from imagefleet.worker.engine.networks.peak_shares import PeakShares
from imagefleet.worker.engine.networks.time_and_text import EmbeddedText
from imagefleet.worker.engine.networks.vae import Vae

_PEAK_SHARES: Final[Mapping[str, PeakShares]] = {
    "v6e": PeakShares(
        step_of_teraflop=0.516, step_growth=0.0, step_flops=(65e12, 75e12), decode=0.35
    )
}
"""They follow from the compiler's estimates for the blocks of schnell, one image of 1024x1024, and
for the decoder of Stable Diffusion XL, which has the same layers. v5e holds no whole copy."""


def image_flops(configs: Configs, networks: Mapping[str, nnx.Module], shape: Shape) -> ImageFlops:
    """Count the FLOPs of an image of this shape. `networks` are from `FamilyModel.networks`."""
    length, factor = configs.text_length, configs.vae.downsampling
    height, width = shape.height // factor, shape.width // factor
    embed = call_of(
        networks[TRANSFORMER],
        Transformer.embed_text,
        abstract_array(1, length, configs.t5.d_model),
        abstract_array(1, configs.clip.hidden_size),
    )
    text: EmbeddedText = jax.eval_shape(*embed)
    number, latents = (
        abstract_array(1, dtype=jnp.float32),
        abstract_array(1, height, width, configs.input_channels),
    )
    image = abstract_array(1, height, width, configs.vae.latent_channels)
    of_clip = abstract_array(1, configs.clip.max_position_embeddings, dtype=jnp.int32)
    return ImageFlops(
        text=network_flops(networks[T5], abstract_array(1, length, dtype=jnp.int32))
        + network_flops(networks[CLIP], of_clip)
        + matmul_flops(*embed),
        step=network_flops(networks[TRANSFORMER], latents, number, number, text),
        decode=matmul_flops(*call_of(networks[VAE], Vae.decode, image)),
        peak_shares=_PEAK_SHARES,
    )
