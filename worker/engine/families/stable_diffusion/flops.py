"""Count the FLOPs that an image takes, from the configs of its model.

Input: configs and a shape. Output: the FLOPs of each stage. Nothing is compiled.
"""

from collections.abc import Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.unet_encoder import PromptContext
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
    "v5e": PeakShares(
        step_of_teraflop=0.38, step_growth=0.125, step_flops=(1.5e12, 13.2e12), decode=0.71
    )
}
"""They are within 9 % of the compiler's estimates for steps of Stable Diffusion 1.4 (one and four
images) and XL, and for the decoders of 1.4, 2.1 and XL. For other generations, too few steps were
compiled in full."""


def image_flops(
    configs: Configs, networks: Mapping[str, nnx.Module], shape: Shape, prompt_chunks: int = 1
) -> ImageFlops:
    """Count the FLOPs of an image of this shape. `networks` are from `FamilyModel.networks`."""
    factor = configs.vae.downsampling
    latents = (shape.height // factor, shape.width // factor, configs.vae.latent_channels)
    inputs = abstract_array(configs.guided_rows, *latents[:2], configs.unet.in_channels)
    timesteps = abstract_array(configs.guided_rows, dtype=jnp.float32)
    context = prompt_context(configs, networks, prompt_chunks)
    length = configs.text_encoders[0].max_position_embeddings
    tokens = abstract_array(2 * prompt_chunks, length, dtype=jnp.int32)
    text = sum(network_flops(networks[name], tokens) for name in configs.pipeline.text_encoders)
    decode = matmul_flops(*call_of(networks["vae"], Vae.decode, abstract_array(1, *latents)))
    if (safety := networks.get("safety_checker")) is not None:
        pixels = abstract_array(1, shape.height, shape.width, 3, dtype=jnp.uint8)
        decode += network_flops(safety, pixels)
    return ImageFlops(
        text=text,
        step=network_flops(networks["unet"], inputs, timesteps, context),
        decode=decode,
        peak_shares=_PEAK_SHARES,
    )


def prompt_context(
    configs: Configs, networks: Mapping[str, nnx.Module], prompt_chunks: int = 1
) -> PromptContext:
    """Return the keys and values of the prompts of one image, as abstract arrays of bfloat16."""
    length = prompt_chunks * configs.text_encoders[0].max_position_embeddings
    hidden = abstract_array(configs.guided_rows, length, configs.unet.cross_attention_dim)
    text_time = configs.unet.text_time
    pooled = None if text_time is None else abstract_array(configs.guided_rows, text_time.pooled)

    def project(network: Any, *inputs: Any) -> Any:
        return network.project_context(*inputs, (0,) * (text_time.time_ids if text_time else 0))

    context: PromptContext = jax.eval_shape(*call_of(networks["unet"], project, hidden, pooled))
    return context
