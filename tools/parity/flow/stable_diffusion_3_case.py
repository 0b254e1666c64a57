"""Describe tiny checkpoints of Stable Diffusion 3, and the images that are compared.

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

from tools.parity.flow import flux1_case, t5_case
from tools.parity.flow.checkpoint import levels, noise_of, write_files
from tools.parity.flow.t5_tokenizer import write_tokenizer
from tools.parity.fuzz.draft import FIXTURES

INDEX: Final[dict[str, Any]] = {
    "_class_name": "StableDiffusion3Pipeline",
    "_diffusers_version": "0.42.1",
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "text_encoder_3": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "tokenizer_3": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "SD3Transformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
CLIP: Final[dict[str, Any]] = {
    **flux1_case.CLIP,
    "architectures": ["CLIPTextModelWithProjection"],
    "num_hidden_layers": 3,
}
CLIP_2: Final[dict[str, Any]] = {
    **CLIP,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "projection_dim": 12,
    "hidden_act": "gelu",
}
T5: Final[dict[str, Any]] = {**t5_case.CONFIG, "d_model": 32, "num_layers": 2}
"""It is wider than both CLIP together."""
TRANSFORMER: Final[dict[str, Any]] = {
    "_class_name": "SD3Transformer2DModel",
    "attention_head_dim": 16,
    "caption_projection_dim": 32,
    "dual_attention_layers": [0, 1],
    "in_channels": 16,
    "joint_attention_dim": T5["d_model"],
    "num_attention_heads": 2,
    "num_layers": 3,
    "out_channels": 16,
    "patch_size": 2,
    "pooled_projection_dim": CLIP["projection_dim"] + CLIP_2["projection_dim"],
    "pos_embed_max_size": 9,
    "qk_norm": "rms_norm",
    "sample_size": 16,
}
VAE: Final[dict[str, Any]] = {
    **flux1_case.VAE,
    "scaling_factor": 1.5305,
    "shift_factor": 0.0609,
}
SCHEDULER: Final[dict[str, Any]] = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 3.0,
}
HEIGHT, WIDTH, DOWNSAMPLING, CHANNELS = 32, 48, 4, 16
"""An image has 24 tokens."""
PROMPTS: Final = flux1_case.PROMPTS
NEGATIVES: Final = flux1_case.NEGATIVES
STEPS: Final = 4
TIMESTEPS: Final = (125.0, 750.0)
"""The transformer alone is compared at these timesteps, one for each prompt."""
STATES_APART: Final = 16
"""Every 16th state of a prompt is compared."""
BLOCK_TOKENS: Final = 30
"""The blocks are compared with this many tokens of the text."""
GUIDANCES: Final = (1.0, 4.5)
CLIP_SKIP: Final = 1
T5_LEFT_OUT: Final = "T5 left out"
"""It is the answer of a checkpoint whose T5 is not read."""
STRENGTH: Final = 0.6
"""It leaves 2.4 of the steps."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What differs from the checkpoint above, and the image that is made."""

    transformer: Mapping[str, Any] = field(default_factory=dict)
    clip: Mapping[str, Any] = field(default_factory=dict)
    clip_2: Mapping[str, Any] = field(default_factory=dict)
    t5: Mapping[str, Any] | None = field(default_factory=dict)
    """None: the checkpoint has no T5."""
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
        t5 = {} if self.t5 is None else {"text_encoder_3": {**T5, **self.t5}}
        return {
            "text_encoder": {**CLIP, **self.clip},
            "text_encoder_2": {**CLIP_2, **self.clip_2},
            **t5,
            "transformer": {**TRANSFORMER, **self.transformer},
            "vae": {**VAE, **self.vae},
            "scheduler": {**SCHEDULER, **self.scheduler},
        }

    @property
    def index(self) -> dict[str, Any]:
        """Return the model_index.json."""
        absent = ("text_encoder_3", "tokenizer_3") if self.t5 is None else ()
        return {**INDEX, **{name: [None, None] for name in absent}}

    @property
    def noise(self) -> NDArray[np.float32]:
        """Return the noise at the start of the image, `[1, c, h, w]`."""
        return noise_of(self.configs["vae"], self.height, self.width)


_LONG: Final = "红色的圆形 with three blue stars and a house " * 40
"""It is longer than 256 tokens."""
VARIANTS: Final[Mapping[str, Variant]] = {
    "3 medium: neither norms nor dual attention": Variant(
        transformer={"dual_attention_layers": [], "qk_norm": None, "pos_embed_max_size": 12},
        prompt=_LONG,
    ),
    "3.5 large: norms, no dual attention": Variant(
        transformer={
            "dual_attention_layers": [],
            "num_attention_heads": 3,
            "attention_head_dim": 12,
            "caption_projection_dim": 36,
        },
        guidance=4.5,
    ),
    "3.5 large turbo: no guidance": Variant(
        transformer={"dual_attention_layers": []}, steps=4, guidance=0.0
    ),
    "no T5": Variant(t5=None, prompt=_LONG, guidance=7.0),
    "dual attention in the last block, no norms": Variant(
        transformer={"dual_attention_layers": [1, 5], "num_layers": 2, "qk_norm": None},
        height=48,
        width=32,
    ),
    "one block, a table that is used whole": Variant(
        transformer={"num_layers": 1, "dual_attention_layers": [], "pos_embed_max_size": 6},
        height=48,
        width=48,
    ),
    "other text encoders": Variant(
        transformer={"joint_attention_dim": 40, "pooled_projection_dim": 36},
        clip={"hidden_size": 24, "hidden_act": "gelu", "num_hidden_layers": 1},
        clip_2={"hidden_size": 16, "hidden_act": "quick_gelu", "projection_dim": 28},
        t5={"d_model": 40, "d_kv": 4, "relative_attention_num_buckets": 16},
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
    "few latent channels, no shift": Variant(
        transformer={"in_channels": 4, "out_channels": None},
        vae={"latent_channels": 4},
        scheduler={"shift": 1.0},
        steps=3,
    ),
    "a shift by the size of the image, stretched": Variant(
        scheduler={
            "use_dynamic_shifting": True,
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


def write_configs(folder: Path, variant: Variant | None = None) -> None:
    """Write all files of a checkpoint but its weights."""
    variant = variant or Variant()
    t5 = {} if variant.t5 is None else {"tokenizer_3": write_tokenizer}
    write_files(folder, variant.index, variant.configs, tokenizers=t5)
    for name, padding in (("tokenizer", "<|endoftext|>"), ("tokenizer_2", "!")):
        shutil.copytree(FIXTURES / "older" / "tokenizer", folder / name, dirs_exist_ok=True)
        file = folder / name / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token": padding}))
