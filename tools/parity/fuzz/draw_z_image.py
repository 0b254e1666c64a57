"""Draw checkpoints of Z-Image, and jobs for them.

Input: a folder and a seed. Output: the files of a checkpoint there, but for its weights, which
diffusers' side draws for the networks that it builds. Layouts and damages of weight files are drawn
for Stable Diffusion, since the same code reads them. This module needs neither torch nor JAX.
"""

from functools import partial
from pathlib import Path
from typing import Final

from tools.parity.flow.z_image_case import PROMPTS, write_configs
from tools.parity.flow.z_image_loras import CASES, write_loras
from tools.parity.fuzz.draft import INDEX, REMOVED, Draft, Job
from tools.parity.fuzz.draw_flow import (
    NEGATIVES,
    ODD_PROMPTS,
    Change,
    Fields,
    Structures,
    add_loras,
    begin,
    change_scheduler,
    change_some,
    change_text_encoder,
    change_tokenizer,
    change_transformer,
    change_vae,
    edit_one,
)

BASE: Final = "z_image"
_PROMPTS: Final = (*PROMPTS, *ODD_PROMPTS)

TRANSFORMERS: Final[Structures] = [
    {"n_heads": 4, "n_kv_heads": 4, "axes_dims": [2, 2, 4]},
    {"n_heads": 1, "n_kv_heads": 1, "axes_dims": [8, 12, 12]},
    {"dim": 48, "axes_dims": [8, 8, 8]},
    {"dim": 264, "n_heads": 6, "n_kv_heads": 6, "axes_dims": [12, 16, 16]},
    {"n_layers": 3, "n_refiner_layers": 1},
    {"n_layers": 1, "n_refiner_layers": 1},
    {"n_refiner_layers": 0},
    {"qk_norm": False},
    {"n_kv_heads": 1},
    {"axes_dims": [6, 6, 6]},
    {"axes_dims": [4, 6, 7]},
    {"all_patch_size": [1]},
    {"all_patch_size": [2, 4], "all_f_patch_size": [1, 1]},
    {"all_f_patch_size": [2]},
    {"siglip_feat_dim": 16},
]
"""Changes of its structure."""
TRANSFORMER: Final[Fields] = {
    "norm_eps": [1e-6, 1e-3, REMOVED],
    "rope_theta": [10_000.0, 100, REMOVED],
    "t_scale": [300.0, 1.0, REMOVED],
    "axes_lens": [[1536, 512, 512], [600, 4, 4], [64, 64, 64], REMOVED],
    "qk_norm": [True, REMOVED],
    "n_kv_heads": [1, 8, REMOVED],
    "all_patch_size": [REMOVED, [2]],
    "in_channels": [REMOVED, 16],
    "cap_feat_dim": [32, REMOVED],
    "_class_name": ["SD3Transformer2DModel", REMOVED],
    "_diffusers_version": ["0.36.0"],
    "unknown_field": [1],
}
TEXTS: Final[Structures] = [
    {"num_hidden_layers": 2},
    {"num_hidden_layers": 1},
    {"num_hidden_layers": 6},
    {"num_attention_heads": 2, "num_key_value_heads": 1},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": None},
    {"num_key_value_heads": REMOVED},
    {"head_dim": 4},
    {"head_dim": 10},
    {"head_dim": REMOVED},
    {"attention_bias": True},
    {"intermediate_size": 24},
    {"vocab_size": 700},
    {"hidden_size": 32},
]
VAES: Final[Structures] = [
    {"block_out_channels": [8, 16], "down_block_types": 2, "up_block_types": 2},
    {"block_out_channels": [8, 8, 8, 8], "down_block_types": 4, "up_block_types": 4},
    {"layers_per_block": 2},
    {"use_quant_conv": True, "use_post_quant_conv": True},
    {"use_quant_conv": True},
    {"mid_block_add_attention": False},
    {"norm_num_groups": 2},
    {"act_fn": "gelu"},
    {"latent_channels": 4},
]
VAE: Final[Fields] = {
    "scaling_factor": [0.5, 1.0, REMOVED],
    "shift_factor": [-0.2, 0.0, None, REMOVED],
    "latents_mean": [[0.1] * 16],
    "latents_std": [[2.0] * 16],
    "force_upcast": [True, False],
    "sample_size": [32, 1024],
    "act_fn": ["silu", "swish"],
    "_class_name": ["AutoencoderTiny", REMOVED],
    "unknown_field": [1],
}
CLASSES: Final[Fields] = {
    "transformer": [["diffusers", "NoSuchTransformer"], [None, None], REMOVED],
    "vae": [["diffusers", "AutoencoderTiny"], [None, None]],
    "text_encoder": [
        ["transformers", "Qwen3ForCausalLM"],
        ["transformers", "Qwen2Model"],
        [None, None],
    ],
    "tokenizer": [["transformers", "Qwen2TokenizerFast"], ["transformers", "CLIPTokenizer"]],
    "_class_name": ["ZImageImg2ImgPipeline", "FluxPipeline", REMOVED],
    "_diffusers_version": ["0.36.0", REMOVED],
    "unknown_field": [True],
}


def draw_z_image(folder: Path, seed: int) -> Draft:
    """Write the checkpoint of a seed into `folder`, which must not exist."""
    draft = begin(folder, BASE, seed, write_configs)
    change_some(draft, _CHANGES)
    draft.job = _draw_job(draft)
    return draft


def _draw_job(draft: Draft) -> Job:
    pick = draft.random.choice
    has_image = draft.random.random() < 0.3
    count = 1 if has_image else 2
    negative = pick(NEGATIVES)
    return Job(
        prompts=draft.random.sample(_PROMPTS, count),
        negative_prompts=None if negative is None else [negative] * count,
        scheduler=pick([None, None, "euler", "heun", "lcm", "dpmsolver++", "unipc"]),
        steps=pick([1, 2, 3, 4]),
        guidance=pick([0.0, 0.5, 1.0, 3.0, 3.0, 5.0]),
        cfg_normalization=pick([0.0, 0.0, 1.0, 0.5, 2.0]),
        cfg_truncation=pick([1.0, 1.0, 0.0, 0.1, 0.25, 0.5]),
        strength=pick([0.3, 0.5, 0.6, 0.9, 1.0]) if has_image else None,
        is_masked=has_image and pick([True, False]),
        side=pick([32, 32, 32, 48, 64]),
    )


_change_text_encoder = partial(
    change_text_encoder, structures=TEXTS, layers=4, width="cap_feat_dim", states=1
)
_CHANGES: Final[tuple[tuple[Change, int], ...]] = (
    (partial(change_transformer, fields=TRANSFORMER, structures=TRANSFORMERS), 20),
    (_change_text_encoder, 20),
    (partial(change_vae, fields=VAE, structures=VAES, pixels=1), 14),
    (change_scheduler, 30),
    (change_tokenizer, 10),
    (partial(edit_one, file=INDEX, fields=CLASSES), 6),
    (partial(add_loras, cases=CASES, write=write_loras), 6),
)
"""Kinds of changes and how often each is drawn."""
