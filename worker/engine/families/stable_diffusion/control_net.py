"""Define a ControlNet (Zhang et al. 2023): diffusers' ControlNetModel.

Input: noisy latents with their timesteps and prompts, as for the UNet, and a control image. Output:
maps that are added to those of the UNet. Feature maps are `[b, h, w, c]`.
"""

from itertools import pairwise

import jax
from flax import nnx

from imagefleet.worker.engine.families.stable_diffusion.control_net_config import ControlNetConfig
from imagefleet.worker.engine.families.stable_diffusion.unet import AddedMaps
from imagefleet.worker.engine.families.stable_diffusion.unet_encoder import (
    PromptContext,
    UNetEncoder,
)
from imagefleet.worker.engine.networks.blocks import conv, linear


class ControlEmbedding(nnx.Module):
    """It is diffusers' ControlNetConditioningEmbedding. It does not depend on the step."""

    def __init__(self, widths: tuple[int, ...], width_out: int) -> None:
        self.conv_in = conv(3, widths[0])
        self.blocks = nnx.List(
            layer
            for width, wider in pairwise(widths)
            for layer in (conv(width, width), conv(width, wider, stride=2))
        )
        self.conv_out = conv(widths[-1], width_out)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Map `pixels [b, H, W, 3]`, 0 to 1, to `[b, h, w, width_out]`."""
        x = jax.nn.silu(self.conv_in(pixels))
        for block in self.blocks:
            x = jax.nn.silu(block(x))
        return self.conv_out(x)


class ControlNet(UNetEncoder):
    """It is diffusers' ControlNetModel."""

    def __init__(self, config: ControlNetConfig) -> None:
        super().__init__(config.encoder)
        widths = config.encoder.skip_widths
        self.controlnet_cond_embedding = ControlEmbedding(config.embedding_widths, widths[0])
        # A 1x1 convolution over channels-last maps is a matrix product.
        self.controlnet_down_blocks = nnx.List(linear(width, width) for width in widths)
        self.controlnet_mid_block = linear(widths[-1], widths[-1])

    def __call__(
        self,
        latents: jax.Array,
        timesteps: jax.Array,
        prompt: PromptContext,
        control_map: jax.Array,
    ) -> AddedMaps:
        """Return what is added to the maps of the UNet, in the dtype of `latents`.

        Args:
            latents: `[b, h, w, in_channels]`.
            timesteps: float32 `[b]`.
            prompt: From `project_context`.
            control_map: `[b, h, w, c]`, from `controlnet_cond_embedding`.
        """
        time = self.embed_time(timesteps, prompt, latents.dtype)
        x = self.conv_in(latents) + control_map
        skips, middle = self.encode(x, time, iter(prompt.masked_blocks()))
        layers = zip(self.controlnet_down_blocks, skips, strict=True)
        return AddedMaps(
            tuple(layer(skip.values) for layer, skip in layers),
            self.controlnet_mid_block(middle.values),
        )
