"""Describe tiny checkpoints of FLUX.2 klein, and the images that are compared.

Both sides write the same checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tools.parity.flow import qwen_case
from tools.parity.flow.checkpoint import levels, write_files

INDEX: Final[dict[str, Any]] = {
    "_class_name": "Flux2KleinPipeline",
    "_diffusers_version": "0.42.1",
    "is_distilled": False,
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen3ForCausalLM"],
    "tokenizer": ["transformers", "Qwen2TokenizerFast"],
    "transformer": ["diffusers", "Flux2Transformer2DModel"],
    "vae": ["diffusers", "AutoencoderKLFlux2"],
}
TEXT_ENCODER: Final[dict[str, Any]] = {
    **qwen_case.CONFIG,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 28,
    "max_window_layers": 28,
}
"""The pipeline reads the hidden states 9, 18 and 27."""
TRANSFORMER: Final[dict[str, Any]] = {
    "_class_name": "Flux2Transformer2DModel",
    "attention_head_dim": 16,
    "axes_dims_rope": [4, 4, 4, 4],
    "eps": 1e-6,
    "guidance_embeds": False,
    "in_channels": 32,
    "joint_attention_dim": 3 * TEXT_ENCODER["hidden_size"],
    "mlp_ratio": 3.0,
    "num_attention_heads": 2,
    "num_layers": 2,
    "num_single_layers": 2,
    "out_channels": None,
    "patch_size": 1,
    "rope_theta": 2000,
    "timestep_guidance_channels": 256,
}
VAE: Final[dict[str, Any]] = {
    "_class_name": "AutoencoderKLFlux2",
    "batch_norm_eps": 1e-4,
    "batch_norm_momentum": 0.1,
    "block_out_channels": [8, 8, 16],
    "down_block_types": ["DownEncoderBlock2D"] * 3,
    "up_block_types": ["UpDecoderBlock2D"] * 3,
    "latent_channels": 8,
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "patch_size": [2, 2],
    "use_quant_conv": True,
    "use_post_quant_conv": True,
}
SCHEDULER: Final[dict[str, Any]] = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 4096,
    "max_shift": 1.15,
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "time_shift_type": "exponential",
    "use_dynamic_shifting": True,
}
HEIGHT, WIDTH, PIXELS_PER_TOKEN, CHANNELS = 32, 48, 8, 32
"""An image has 24 tokens."""
PROMPTS: Final = ("a red circle on blue", "Zwölf  Bücher, 3 for €5! 红色的圆形 " * 3)
NEGATIVES: Final = ("", "blue, the star")
STEPS: Final = 4
TIMESTEPS: Final = (125.0, 750.0)
"""The transformer alone is compared at these timesteps, one for each prompt."""
STATES_APART: Final = 16
"""Every 16th hidden state of a prompt is compared."""
BLOCK_TOKENS: Final = 30
"""The blocks are compared with this many tokens of the text."""
GUIDANCES: Final = (1.0, 4.0)
SHIFTED_TOKENS: Final = (1, 24, 256, 1024, 4096, 4300, 4301, 16_384)
SHIFTED_STEPS: Final = (1, 4, 10, 28, 50, 200, 300)
"""The shifts of images of these tokens are compared for these steps."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What differs from the checkpoint above, and the image that is made."""

    index: Mapping[str, Any] = field(default_factory=dict)
    transformer: Mapping[str, Any] = field(default_factory=dict)
    text_encoder: Mapping[str, Any] = field(default_factory=dict)
    vae: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    height: int = HEIGHT
    width: int = WIDTH
    steps: int = 2
    guidance: float = 3.0
    prompt: str = PROMPTS[0]

    @property
    def configs(self) -> dict[str, Mapping[str, Any]]:
        """Return the configs by folder."""
        return {
            "text_encoder": {**TEXT_ENCODER, **self.text_encoder},
            "transformer": {**TRANSFORMER, **self.transformer},
            "vae": {**VAE, **self.vae},
            "scheduler": {**SCHEDULER, **self.scheduler},
        }

    @property
    def noise(self) -> NDArray[np.float32]:
        """Return the noise at the start of the image, `[1, c, h, w]`."""
        configs = self.configs
        pixels = 2 ** len(configs["vae"]["block_out_channels"])
        channels = configs["transformer"]["in_channels"]
        size = (1, channels, self.height // pixels, self.width // pixels)
        return np.random.RandomState(8).standard_normal(size).astype(np.float32)


VARIANTS: Final[Mapping[str, Variant]] = {
    "distilled": Variant(index={"is_distilled": True}, steps=4, guidance=4.0),
    "many heads, few layers": Variant(
        transformer={
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "axes_dims_rope": [2, 2, 2, 2],
            "num_layers": 1,
            "num_single_layers": 3,
        },
    ),
    "uneven axes and other numbers": Variant(
        transformer={
            "attention_head_dim": 20,
            "axes_dims_rope": [2, 6, 8, 4],
            "rope_theta": 10_000,
            "eps": 1e-5,
            "mlp_ratio": 2.7,
            "timestep_guidance_channels": 64,
        },
        guidance=1.0,
    ),
    "double blocks alone": Variant(transformer={"num_single_layers": 0}, guidance=1.5),
    "single blocks alone": Variant(transformer={"num_layers": 0}, height=48, width=32),
    "another text encoder": Variant(
        transformer={"joint_attention_dim": 72},
        text_encoder={
            "hidden_size": 24,
            "num_hidden_layers": 27,
            "num_key_value_heads": 2,
            "attention_bias": True,
        },
        prompt="红色的圆形 with three blue stars and a house " * 60,  # longer than 512 tokens
    ),
    "another autoencoder": Variant(
        vae={
            **levels(4),
            "decoder_block_out_channels": [8, 4, 8, 12],
            "layers_per_block": 2,
            "batch_norm_eps": 1e-2,
            "mid_block_add_attention": False,
            "use_quant_conv": False,
            "use_post_quant_conv": False,
        },
        width=80,
    ),
    "few latent channels": Variant(transformer={"in_channels": 16}, vae={"latent_channels": 4}),
    "a fixed shift": Variant(scheduler={"use_dynamic_shifting": False, "shift": 2.0}, steps=3),
    "a linear shift, stretched": Variant(
        scheduler={"time_shift_type": "linear", "shift_terminal": 0.05}, steps=9, guidance=7.5
    ),
    "levels of Karras, one step of a wide image": Variant(
        scheduler={"use_karras_sigmas": True}, steps=1, height=8, width=72
    ),
}


FULL_WIDTH: Final = 3072
"""It is that of FLUX.2 klein 4B."""
FULL_TOKENS: Final = 4
"""The blocks of full width get so many tokens of a text."""
FULL_SIZE: Final = (2, 3)
"""They get so many rows and columns of an image."""
FULL_APART: Final = 8
"""Every 8th number of their outputs is compared."""


def full_inputs() -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return tokens of a text and of an image, `[1, n, 3072]`, and a modulation of two layers,
    `[1, 6 * 3072]`, for blocks of full width."""
    random = np.random.RandomState(9)
    rows, columns = FULL_SIZE
    shapes = (FULL_TOKENS, FULL_WIDTH), (rows * columns, FULL_WIDTH), (6 * FULL_WIDTH,)
    text, image, modulation = (random.standard_normal((1, *shape)) for shape in shapes)
    return text.astype(np.float32), image.astype(np.float32), modulation.astype(np.float32)


def write_configs(folder: Path, variant: Variant | None = None) -> None:
    """Write all files of a checkpoint but its weights."""
    variant = variant or Variant()
    write_files(folder, {**INDEX, **variant.index}, variant.configs)
