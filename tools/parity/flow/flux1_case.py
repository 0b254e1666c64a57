"""Describe tiny checkpoints of FLUX.1, and the images that are compared.

Both sides write the same checkpoints.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tools.parity.flow import t5_case
from tools.parity.flow.checkpoint import levels, noise_of, write_files
from tools.parity.flow.t5_tokenizer import write_tokenizer
from tools.parity.fuzz.draft import FIXTURES

INDEX: Final[dict[str, Any]] = {
    "_class_name": "FluxPipeline",
    "_diffusers_version": "0.42.1",
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "FluxTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
_CLIP_TOKENIZER: Final = FIXTURES / "older" / "tokenizer"
CLIP: Final[dict[str, Any]] = {
    "architectures": ["CLIPTextModel"],
    "model_type": "clip_text_model",
    "vocab_size": json.loads((FIXTURES / "older/text_encoder/config.json").read_text())[
        "vocab_size"
    ],
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "eos_token_id": 2,
    "projection_dim": 8,
}
TRANSFORMER: Final[dict[str, Any]] = {
    "_class_name": "FluxTransformer2DModel",
    "attention_head_dim": 16,
    "axes_dims_rope": [4, 6, 6],
    "guidance_embeds": True,
    "in_channels": 64,
    "joint_attention_dim": t5_case.CONFIG["d_model"],
    "num_attention_heads": 2,
    "num_layers": 2,
    "num_single_layers": 2,
    "patch_size": 1,
    "pooled_projection_dim": CLIP["hidden_size"],
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
    "latents_mean": None,
    "latents_std": None,
}
SCHEDULER: Final[dict[str, Any]] = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 4096,
    "max_shift": 1.15,
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": True,
}
SCHNELL: Final[dict[str, Any]] = {"shift": 1.0, "use_dynamic_shifting": False}
HEIGHT, WIDTH, DOWNSAMPLING, CHANNELS = 32, 48, 4, 16
"""An image has 24 tokens."""
PROMPTS: Final = ("a red circle on blue", "Zwölf  Bücher, 3 for €5! 红色的圆形 " * 3)
NEGATIVES: Final = ("", "blue, the star")
"""They have no effect without a scale of `TRUE_GUIDANCES`."""
STEPS: Final = 4
TIMESTEPS: Final = (125.0, 750.0)
"""The transformer alone is compared at these timesteps, one for each prompt."""
STATES_APART: Final = 16
"""Every 16th state of a prompt is compared."""
BLOCK_TOKENS: Final = 30
"""The blocks are compared with this many tokens of the text."""
GUIDANCES: Final = (1.0, 3.5)
TRUE_GUIDANCES: Final = {
    "guided": (4.0, NEGATIVES[1]),
    "guided from an empty prompt": (1.5, ""),
}
"""By the name of an image: `true_cfg_scale`, and the negative prompt."""
STRENGTH: Final = 0.6
"""It leaves 2.4 of the steps."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What differs from the checkpoint above, and the image that is made."""

    index: Mapping[str, Any] = field(default_factory=dict)
    transformer: Mapping[str, Any] = field(default_factory=dict)
    clip: Mapping[str, Any] = field(default_factory=dict)
    t5: Mapping[str, Any] = field(default_factory=dict)
    vae: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    height: int = HEIGHT
    width: int = WIDTH
    steps: int = 2
    guidance: float = 3.0
    prompt: str = PROMPTS[0]
    true_guidance: float = 1.0
    """It is `true_cfg_scale`, with the negative prompt `NEGATIVES[1]`."""

    @property
    def configs(self) -> dict[str, Mapping[str, Any]]:
        """Return the configs by folder."""
        return {
            "text_encoder": {**CLIP, **self.clip},
            "text_encoder_2": {**t5_case.CONFIG, **self.t5},
            "transformer": {**TRANSFORMER, **self.transformer},
            "vae": {**VAE, **self.vae},
            "scheduler": {**SCHEDULER, **self.scheduler},
        }

    @property
    def text_length(self) -> int:
        """Return how many tokens T5 gets."""
        return 512 if self.configs["transformer"]["guidance_embeds"] else 256

    @property
    def noise(self) -> NDArray[np.float32]:
        """Return the noise at the start of the image, `[1, c, h, w]`."""
        return noise_of(self.configs["vae"], self.height, self.width)


VARIANTS: Final[Mapping[str, Variant]] = {
    "schnell": Variant(
        transformer={"guidance_embeds": False},
        scheduler=SCHNELL,
        steps=4,
        prompt="红色的圆形 with three blue stars and a house " * 40,  # longer than 256 tokens
    ),
    "schnell, guided": Variant(
        transformer={"guidance_embeds": False}, scheduler=SCHNELL, steps=4, true_guidance=2.5
    ),
    "many heads, few layers": Variant(
        transformer={
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "axes_dims_rope": [4, 2, 2],
            "num_layers": 1,
            "num_single_layers": 3,
        },
        guidance=0.0,
    ),
    "double blocks alone": Variant(transformer={"num_single_layers": 0}, guidance=1.5),
    "single blocks alone": Variant(transformer={"num_layers": 0}, height=48, width=32),
    "other text encoders": Variant(
        transformer={"joint_attention_dim": 32, "pooled_projection_dim": 24},
        clip={"hidden_size": 24, "hidden_act": "gelu", "num_hidden_layers": 3},
        t5={"d_model": 32, "d_kv": 4, "relative_attention_num_buckets": 16, "num_layers": 2},
        prompt="红色的圆形 with three blue stars and a house " * 80,  # longer than 512 tokens
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
    "few latent channels, a fixed shift": Variant(
        transformer={"in_channels": 16},
        vae={"latent_channels": 4},
        scheduler={"use_dynamic_shifting": False, "shift": 2.0},
        steps=3,
    ),
    "a linear shift, stretched": Variant(
        scheduler={
            "time_shift_type": "linear",
            "shift_terminal": 0.05,
            "base_shift": 0.4,
            "max_shift": 2.0,
            "base_image_seq_len": 16,
            "max_image_seq_len": 64,
        },
        steps=9,
        guidance=7.5,
    ),
    "levels of Karras, one step of a wide image": Variant(
        scheduler={"use_karras_sigmas": True}, steps=1, height=8, width=72
    ),
}

FILL: Final = Variant(
    index={"_class_name": "FluxFillPipeline"},
    transformer={
        "in_channels": 4 * (2 * CHANNELS + DOWNSAMPLING**2),
        "out_channels": 4 * CHANNELS,
    },
)
KONTEXT: Final = Variant(index={"_class_name": "FluxKontextPipeline"})
FILL_STRENGTHS: Final = {"fill": 1.0, "fill in part": STRENGTH}


def write_configs(folder: Path, variant: Variant | None = None) -> None:
    """Write all files of a checkpoint but its weights."""
    variant = variant or Variant()
    write_files(folder, {**INDEX, **variant.index}, variant.configs, tokenizers={})
    shutil.copytree(_CLIP_TOKENIZER, folder / "tokenizer", dirs_exist_ok=True)
    write_tokenizer(folder / "tokenizer_2")
