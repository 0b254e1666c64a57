"""Define the denoiser of Stable Diffusion 1.x and 2.x (Rombach et al. 2022) and of SDXL (Podell et
al. 2023): diffusers' UNet2DConditionModel.

Input: noisy latents, a timestep for each, and the states of the text encoders. Output: the model's
prediction (epsilon, v or sample: only the scheduler's config says which). Feature maps are `[b, h,
w, c]`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from flax import nnx

from imagefleet.worker.engine.families.stable_diffusion.unet_config import UNetConfig
from imagefleet.worker.engine.families.stable_diffusion.unet_encoder import (
    PromptContext,
    UNetEncoder,
    time_resnet,
)
from imagefleet.worker.engine.families.stable_diffusion.unet_transformer import (
    BlockContext,
    Transformer,
)
from imagefleet.worker.engine.kernels.feature_map import FeatureMap
from imagefleet.worker.engine.networks.blocks import (
    GroupNorm,
    Upsample,
    conv,
    normalize_and_convolve,
)


class UpBlock(nnx.Module):
    """It is UpBlock2D and CrossAttnUpBlock2D of diffusers. It has a layer more than its down
    block."""

    def __init__(self, config: UNetConfig, index: int) -> None:
        channels = config.block_out_channels
        level = len(channels) - 1 - index
        width, layers = channels[level], config.layers_per_block[level] + 1
        below = channels[min(level + 1, len(channels) - 1)]
        widths_in = [below, *[width] * (layers - 1)]
        skip_widths = [*[width] * (layers - 1), channels[max(level - 1, 0)]]
        self.resnets = nnx.List(
            time_resnet(config, width_in + skip_width, width)
            for width_in, skip_width in zip(widths_in, skip_widths, strict=True)
        )
        has_attention = config.up_has_attention[index]
        transformers = config.up_transformer_layers[index] if has_attention else ()
        self.attentions = nnx.List(Transformer(config, level, depth) for depth in transformers)
        self.upsampler = None if level == 0 else Upsample(width)

    def __call__(
        self, x: FeatureMap, skips: Sequence[FeatureMap], time: jax.Array, context: BlockContext
    ) -> FeatureMap:
        """Return the output of the block. Each of its layers reads one of `skips`."""
        for index, (resnet, skip) in enumerate(zip(self.resnets, skips, strict=True)):
            x = resnet(x, time, skip=skip)
            if self.attentions:
                x = self.attentions[index](x, context[index])
        return x if self.upsampler is None else self.upsampler(x.values)


def _predict(layers: tuple[GroupNorm, nnx.Conv], x: FeatureMap) -> jax.Array:
    """Return the prediction, by the last two layers of the UNet."""
    return normalize_and_convolve(*layers, x).values


class AddedMaps(NamedTuple):
    """It has what ControlNets add to the maps of a UNet (Zhang et al. 2023)."""

    skips: tuple[jax.Array, ...]
    """It has one map for each that the up blocks read, the finest first."""
    middle: jax.Array
    """It is added to the output of the middle block."""


class UNet(UNetEncoder):
    """It is diffusers' UNet2DConditionModel."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__(config)
        width = config.block_out_channels[0]
        self.up_blocks = nnx.List(
            UpBlock(config, index) for index in range(len(config.block_out_channels))
        )
        self.conv_norm_out = GroupNorm(width, config.norm_num_groups, config.norm_eps)
        self.conv_out = conv(width, config.out_channels)

    def _attentions(self) -> list[Sequence[Transformer]]:
        return [*super()._attentions(), *(up.attentions for up in self.up_blocks)]

    def __call__(
        self,
        latents: jax.Array,
        timesteps: jax.Array,
        prompt: PromptContext,
        guidance: jax.Array | None = None,
        added: AddedMaps | None = None,
    ) -> jax.Array:
        """Return the prediction `[b, h, w, out_channels]`, in the dtype of `latents`.

        Args:
            latents: `[b, h, w, in_channels]`.
            timesteps: float32 `[b]`.
            prompt: From `project_context`.
            guidance: The guidance scale, float32 `[b]`. Only UNets distilled from guidance read it.
            added: By ControlNets. None: there are none.
        """
        time = self.embed_time(timesteps, prompt, latents.dtype, guidance)
        contexts = iter(prompt.masked_blocks())
        skips, x = self.encode(self.conv_in(latents), time, contexts)
        if added is not None:
            pairs = zip(skips, added.skips, strict=True)
            skips = [FeatureMap(skip.values + more) for skip, more in pairs]
            x = FeatureMap(x.values + added.middle)
        for index, up in enumerate(self.up_blocks):
            taken = [skips.pop() for _ in up.resnets]
            x = self.run(-1 - index, UpBlock.__call__, up, x, taken, time, next(contexts))
        return self.run(0, _predict, (self.conv_norm_out, self.conv_out), x)
