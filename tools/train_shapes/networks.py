"""The three networks and the noise schedule, built with diffusers and transformers.

Their configurations are those of Stable Diffusion 1.x, only narrower. This module uses no data and
trains nothing.
"""

from __future__ import annotations

from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from tools.train_shapes.scenes import SIDE
from tools.train_shapes.tokenizer import LENGTH

LATENT_CHANNELS = 4
LATENT_SIDE = SIDE // 4
TEXT_WIDTH = 64


def build_autoencoder() -> AutoencoderKL:
    """Build the autoencoder between 64x64 RGB in -1..1 and 16x16x4."""
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(32, 64, 64),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=16,
        sample_size=SIDE,
        scaling_factor=1.0,
    )


def build_text_encoder(*, vocabulary_size: int, start: int, end: int) -> CLIPTextModel:
    """Build the text encoder from 77 token ids to 77 states of width 64."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=vocabulary_size,
            hidden_size=TEXT_WIDTH,
            intermediate_size=4 * TEXT_WIDTH,
            projection_dim=TEXT_WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
            hidden_act="quick_gelu",
            bos_token_id=start,
            eos_token_id=end,
            pad_token_id=end,
        )
    )


def build_denoiser() -> UNet2DConditionModel:
    """Build the UNet. It has attention only at 8x8 and 4x4: at 16x16 it would cost more than all
    other layers together."""
    unet = UNet2DConditionModel(
        sample_size=LATENT_SIDE,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DCrossAttn",
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(48, 96, 112),
        layers_per_block=1,
        norm_num_groups=16,
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=4,
    )
    _silence_residuals(unet)
    return unet


def build_scheduler() -> DDIMScheduler:
    """Build the scheduler. Its linear betas end at a signal so small that even a flat background
    is noise."""
    scheduler = DDIMScheduler(
        num_train_timesteps=1000,
        beta_start=1e-4,
        beta_end=0.02,
        beta_schedule="linear",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=True,
        steps_offset=0,
    )
    scheduler.register_to_config(skip_prk_steps=True)  # for jobs that choose PNDM
    return scheduler


def _silence_residuals(unet: UNet2DConditionModel) -> None:
    # Residual branches that start at zero let the learning rate start high.
    for name, module in unet.named_modules():
        last = name.rsplit(".", 1)[-1]
        is_branch_end = last in {"proj_out", "conv_out"} or (last == "conv2" and "resnets" in name)
        if is_branch_end and isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.zeros_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
