"""Count the FLOPs that an image takes, from the configs of its model.

Input: configs and a shape. Output: the FLOPs of each stage. Nothing is compiled.
"""

from collections.abc import Mapping
from typing import Final

import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flux2_klein.configs import (
    TEXT_ENCODER,
    TEXT_LENGTH,
    TRANSFORMER,
    VAE,
    Configs,
)
from imagefleet.worker.engine.families.flux2_klein.transformer import Transformer
from imagefleet.worker.engine.families.flux2_klein.vae import Flux2Vae
from imagefleet.worker.engine.networks.matmul_flops import (
    ImageFlops,
    abstract_array,
    call_of,
    matmul_flops,
    network_flops,
)
from imagefleet.worker.engine.networks.peak_shares import PeakShares

_PEAK_SHARES: Final[Mapping[str, PeakShares]] = {
    name: PeakShares(
        step_of_teraflop=step, step_growth=0.0, step_flops=(34e12, 36e12), decode=decode
    )
    for name, step, decode in (("v5e", 0.83, 0.76), ("v6e", 0.53, 0.35))
}
"""They follow from the compiler's estimates for the blocks of FLUX.2 klein 4B, one image of
1024x1024, and for the decoder of Stable Diffusion XL, which has the same layers."""


def image_flops(configs: Configs, networks: Mapping[str, nnx.Module], shape: Shape) -> ImageFlops:
    """Count the FLOPs of an image of this shape. `networks` are from `FamilyModel.networks`."""
    rows, factor = configs.guided_rows, configs.vae.pixels_per_latent
    size = (shape.height // factor, shape.width // factor, configs.vae.packed_channels)
    tokens = abstract_array(rows, TEXT_LENGTH, dtype=jnp.int32)
    states = abstract_array(rows, TEXT_LENGTH, configs.transformer.joint_attention_dim)
    embed = call_of(networks[TRANSFORMER], Transformer.embed_text, states)
    text = abstract_array(rows, TEXT_LENGTH, configs.transformer.width)
    times = abstract_array(rows, dtype=jnp.float32)
    latents = abstract_array(rows, *size)
    return ImageFlops(
        text=network_flops(networks[TEXT_ENCODER], tokens) + matmul_flops(*embed),
        step=network_flops(networks[TRANSFORMER], latents, times, text),
        decode=matmul_flops(*call_of(networks[VAE], Flux2Vae.decode, abstract_array(1, *size))),
        peak_shares=_PEAK_SHARES,
    )
