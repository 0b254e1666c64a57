"""List the attention layers of a model.

Input: configs and a shape. Output: the sizes of each distinct layer. It computes nothing.
"""

from collections.abc import Iterator

from jax.typing import DTypeLike

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.unet_config import UNetConfig
from imagefleet.worker.engine.kernels.attention_backend import AttentionSpec


def attention_layers(
    configs: Configs, shape: Shape, dtype: DTypeLike, prompt_chunks: int = 0
) -> set[AttentionSpec]:
    """Return the sizes of each distinct attention layer of all networks of a model."""
    latents = shape.height * shape.width // configs.vae.downsampling**2
    layers = set(unet_layers(configs, latents, dtype, prompt_chunks))
    if configs.vae.mid_block_add_attention:
        layers.add(_self_attention(latents, 1, configs.vae.block_out_channels[-1], dtype))
    for text in configs.text_encoders:
        tokens, heads, width = (
            text.max_position_embeddings,
            text.num_attention_heads,
            text.hidden_size,
        )
        layers.add(_self_attention(tokens, heads, width, dtype, causal=True))
    if configs.safety is not None:
        vision = configs.safety.vision
        tokens = (vision.image_size // vision.patch_size) ** 2 + 1
        layers.add(_self_attention(tokens, vision.num_attention_heads, vision.hidden_size, dtype))
    return layers


def unet_layers(
    configs: Configs, latents: int, dtype: DTypeLike, prompt_chunks: int = 0
) -> Iterator[AttentionSpec]:
    """Yield the self-attention and the cross-attention of each level of the UNet that has them.

    Args:
        configs: Of the model.
        latents: The number of latent pixels.
        dtype: Of the maps.
        prompt_chunks: The most chunks of a prompt with weights. Several are masked.
    """
    unet = configs.unet
    tokens = max(1, prompt_chunks) * configs.text_encoders[0].max_position_embeddings
    for level in range(len(unet.block_out_channels)):
        if _has_attention(unet, level):
            pixels, heads = latents >> 2 * level, unet.heads[level]
            head_dim = unet.block_out_channels[level] // heads
            for keys, masked in ((pixels, False), (tokens, prompt_chunks > 1)):
                yield AttentionSpec(
                    queries=pixels,
                    keys=keys,
                    heads=heads,
                    head_dim=head_dim,
                    dtype=dtype,
                    masked=masked,
                )


def _has_attention(unet: UNetConfig, level: int) -> bool:
    is_last = level == len(unet.block_out_channels) - 1
    return (
        unet.down_has_attention[level]
        or unet.up_has_attention[-1 - level]
        or (is_last and unet.mid_has_attention)
    )


def _self_attention(
    length: int, heads: int, width: int, dtype: DTypeLike, *, causal: bool = False
) -> AttentionSpec:
    return AttentionSpec(
        queries=length,
        keys=length,
        heads=heads,
        head_dim=width // heads,
        dtype=dtype,
        causal=causal,
    )
