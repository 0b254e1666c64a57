"""Describe tiny checkpoints of Z-Image, and the images that are compared.

Both sides write the same checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tools.parity.flow import qwen_case
from tools.parity.flow.checkpoint import levels, noise_of, write_files

INDEX: Final[dict[str, Any]] = {
    "_class_name": "ZImagePipeline",
    "_diffusers_version": "0.42.1",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen3Model"],
    "tokenizer": ["transformers", "Qwen2Tokenizer"],
    "transformer": ["diffusers", "ZImageTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
TRANSFORMER: Final[dict[str, Any]] = {
    "_class_name": "ZImageTransformer2DModel",
    "all_patch_size": [2],
    "all_f_patch_size": [1],
    "axes_dims": [4, 6, 6],
    "axes_lens": [1024, 64, 64],
    "cap_feat_dim": qwen_case.CONFIG["hidden_size"],
    "dim": 32,
    "in_channels": 16,
    "n_heads": 2,
    "n_kv_heads": 2,
    "n_layers": 2,
    "n_refiner_layers": 2,
    "norm_eps": 1e-5,
    "qk_norm": True,
    "rope_theta": 256.0,
    "t_scale": 1000.0,
}
VAE: Final[dict[str, Any]] = {
    "_class_name": "AutoencoderKL",
    "block_out_channels": [8, 8, 16],
    "down_block_types": ["DownEncoderBlock2D"] * 3,
    "up_block_types": ["UpDecoderBlock2D"] * 3,
    "layers_per_block": 1,
    "latent_channels": 16,
    "norm_num_groups": 4,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "force_upcast": True,
}
STATIC: Final[dict[str, Any]] = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": False,
}
HEIGHT, WIDTH, DOWNSAMPLING, CHANNELS = 32, 48, 4, 16
"""An image has 24 tokens, which are padded to 32."""
PROMPTS: Final = ("a red circle on blue", "Zwölf  Bücher, 3 for €5! 红色的圆形 " * 3)
NEGATIVES: Final = ("", "blue, the star")
STEPS: Final = 4
TIMES: Final = (0.125, 0.75)
"""The transformer alone is compared at these times, one for each prompt."""
GUIDANCES: Final = (0.0, 0.5, 4.0)
STRENGTH: Final = 0.6
"""It leaves 2.4 of the steps."""
STRENGTHS: Final = (0.01, 0.1, 0.25, 0.3, 0.5, 0.55, 0.6, 0.7, 0.9, 0.99, 1.0)
MOST_STEPS: Final = 12
"""The steps that a strength leaves are compared for each number of steps up to this one."""

LIMITS: Final[Mapping[str, Mapping[str, float]]] = {
    "normalized": {"cfg_normalization": True},
    "normalized to a half": {"cfg_normalization": 0.5},
    "normalized above what guidance adds": {"cfg_normalization": 50.0},
    "truncated": {"cfg_truncation": 0.2},
    "truncated after a step": {"cfg_truncation": 0.25},
    "truncated by the rounding of a step": {"cfg_truncation": 0.1},
    "truncated after the first step": {"cfg_truncation": 0.0},
    "normalized and truncated": {"cfg_normalization": 0.8, "cfg_truncation": 0.3},
}
"""These limits of guidance are compared. The steps lie at 0, 0.1, 0.25 and 0.5 of the way from
noise to the image; in float32, 0.1 is above 0.1."""
LIMITED_START: Final = {"cfg_normalization": 0.9, "cfg_truncation": 0.3}
"""Those of an image that starts from another."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What differs from the checkpoint above, and the image that is made."""

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
            "text_encoder": {**qwen_case.CONFIG, **self.text_encoder},
            "transformer": {**TRANSFORMER, **self.transformer},
            "vae": {**VAE, **self.vae},
            "scheduler": {**STATIC, **self.scheduler},
        }

    @property
    def noise(self) -> NDArray[np.float32]:
        """Return the noise at the start of the image, `[1, c, h, w]`."""
        return noise_of(self.configs["vae"], self.height, self.width)


VARIANTS: Final[Mapping[str, Variant]] = {
    "heads without norms": Variant(
        transformer={"qk_norm": False, "n_heads": 4, "n_kv_heads": 4, "axes_dims": [2, 2, 4]},
    ),
    "wider than the embedding of a time": Variant(
        transformer={"dim": 264, "n_heads": 6, "n_kv_heads": 6, "axes_dims": [12, 16, 16]},
        guidance=0.0,
    ),
    "other layers and numbers": Variant(
        transformer={
            "n_layers": 3,
            "n_refiner_layers": 1,
            "norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "t_scale": 300.0,
        },
    ),
    "another text encoder": Variant(
        transformer={"cap_feat_dim": 32},
        text_encoder={
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "attention_bias": True,
        },
        prompt="红色的圆形 with three blue stars and a house " * 60,  # longer than 512 tokens
    ),
    "another autoencoder": Variant(
        vae={
            **levels(4),
            "layers_per_block": 2,
            "use_quant_conv": True,
            "use_post_quant_conv": True,
            "mid_block_add_attention": False,
            "scaling_factor": 0.5,
            "shift_factor": -0.2,
        },
        width=80,
    ),
    "few latent channels": Variant(transformer={"in_channels": 4}, vae={"latent_channels": 4}),
    "a linear shift by size": Variant(
        scheduler={
            "use_dynamic_shifting": True,
            "time_shift_type": "linear",
            "base_shift": 0.4,
            "max_shift": 2.0,
            "base_image_seq_len": 16,
            "max_image_seq_len": 64,
        },
        steps=5,
    ),
    "levels of Karras, no padding of the image": Variant(
        scheduler={"shift": 1.0, "use_karras_sigmas": True}, height=64, width=64, steps=3
    ),
    "a stretched schedule of many steps": Variant(
        scheduler={"shift": 6.0, "shift_terminal": 0.1}, steps=9, guidance=7.5
    ),
    "one step": Variant(steps=1, height=8, width=72, guidance=1.0),
}


FULL_TOKENS: Final = 6
"""The input of the block of full width has this many tokens, at the positions (1, 0, 0), …"""


def full_inputs() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return tokens `[1, n, 3840]` and an embedded time `[1, 256]` for a block of full width."""
    random = np.random.RandomState(9)
    tokens, time = (random.standard_normal((1, *size)) for size in ((FULL_TOKENS, 3840), (256,)))
    return tokens.astype(np.float32), time.astype(np.float32)


def write_configs(folder: Path, variant: Variant | None = None) -> None:
    """Write all files of a checkpoint but its weights."""
    write_files(folder, INDEX, (variant or Variant()).configs)
