"""Count the FLOPs that an image takes, from the configs of its model.

Input: configs and a shape. Output: the FLOPs of each stage. Nothing is compiled.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.stable_diffusion_3.configs import (
    GUIDED_ROWS,
    TEXT_LENGTH,
    Configs,
)
from imagefleet.worker.engine.families.stable_diffusion_3.parts import CLIPS, T5, TRANSFORMER, VAE
from imagefleet.worker.engine.families.stable_diffusion_3.transformer import Transformer
from imagefleet.worker.engine.networks.matmul_flops import (
    ImageFlops,
    abstract_array,
    call_of,
    matmul_flops,
    network_flops,
)
from imagefleet.worker.engine.networks.time_and_text import EmbeddedText
from imagefleet.worker.engine.networks.vae import Vae


def image_flops(configs: Configs, networks: Mapping[str, nnx.Module], shape: Shape) -> ImageFlops:
    """Count the FLOPs of an image of this shape. `networks` are from `FamilyModel.networks`."""
    rows, factor, transformer = GUIDED_ROWS, configs.vae.downsampling, configs.transformer
    lengths = {
        name: clip.max_position_embeddings for name, clip in zip(CLIPS, configs.clips, strict=True)
    }
    if configs.t5 is not None:
        lengths[T5] = TEXT_LENGTH
    encoders = sum(
        network_flops(networks[name], abstract_array(rows, length, dtype=jnp.int32))
        for name, length in lengths.items()
    )
    embed = call_of(
        networks[TRANSFORMER],
        Transformer.embed_text,
        abstract_array(rows, configs.text_tokens, transformer.joint_attention_dim),
        abstract_array(rows, transformer.pooled_projection_dim),
    )
    text: EmbeddedText = jax.eval_shape(*embed)
    size = (shape.height // factor, shape.width // factor, configs.vae.latent_channels)
    times, latents = abstract_array(rows, dtype=jnp.float32), abstract_array(rows, *size)
    return ImageFlops(
        text=encoders + matmul_flops(*embed),
        step=network_flops(networks[TRANSFORMER], latents, times, text),
        decode=matmul_flops(*call_of(networks[VAE], Vae.decode, abstract_array(1, *size))),
    )
