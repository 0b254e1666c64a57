"""Draw checkpoints of FLUX.2 klein, and jobs for them.

Input: a folder and a seed. Output: the files of a checkpoint there, but for its weights, which
diffusers' side draws for the networks that it builds. This module needs neither torch nor JAX.
"""

from functools import partial
from pathlib import Path
from typing import Final

from tools.parity.flow.flux2_klein_case import PROMPTS, write_configs
from tools.parity.flow.flux2_klein_loras import CASES, write_loras
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

BASE: Final = "flux2_klein"

TRANSFORMERS: Final[Structures] = [
    {"num_attention_heads": 4, "attention_head_dim": 8, "axes_dims_rope": [2, 2, 2, 2]},
    {"num_attention_heads": 1, "attention_head_dim": 32, "axes_dims_rope": [8, 8, 8, 8]},
    {"num_attention_heads": 3},
    {"attention_head_dim": 20, "axes_dims_rope": [2, 6, 8, 4]},
    {"num_layers": 0},
    {"num_single_layers": 0},
    {"num_layers": 0, "num_single_layers": 0},
    {"num_layers": 3, "num_single_layers": 1},
    {"axes_dims_rope": [2, 4, 8, 2]},
    {"axes_dims_rope": [4, 4, 8]},
    {"axes_dims_rope": [4, 4, 3, 5]},
    {"axes_dims_rope": [4, 4, 4, 6]},
    {"axes_dims_rope": [4, 4, 4, 2]},
    {"guidance_embeds": True},
    {"guidance_embeds": REMOVED},
    {"patch_size": 2},
    {"out_channels": 32},
    {"out_channels": 16},
    {"timestep_guidance_channels": 64},
    {"timestep_guidance_channels": 65},
]
"""Changes of its structure."""
TRANSFORMER: Final[Fields] = {
    "eps": [1e-5, 1e-3, REMOVED],
    "rope_theta": [10_000, 100.0, REMOVED],
    "mlp_ratio": [2.7, 4, 1.0, REMOVED],
    "timestep_guidance_channels": [128, REMOVED],
    "patch_size": [1, REMOVED],
    "out_channels": [REMOVED],
    "guidance_embeds": [False],
    "axes_dims_rope": [REMOVED],
    "in_channels": [16, REMOVED],
    "joint_attention_dim": [72, REMOVED],
    "_class_name": ["FluxTransformer2DModel", REMOVED],
    "_diffusers_version": ["0.36.0"],
    "unknown_field": [1],
}
TEXTS: Final[Structures] = [
    {"num_hidden_layers": 27},
    {"num_hidden_layers": 26},
    {"num_hidden_layers": 30},
    {"num_attention_heads": 4, "num_key_value_heads": 2},
    {"num_key_value_heads": 2},
    {"num_key_value_heads": None},
    {"num_key_value_heads": REMOVED},
    {"head_dim": 4},
    {"head_dim": 10},
    {"head_dim": REMOVED},
    {"attention_bias": True},
    {"intermediate_size": 40},
    {"vocab_size": 700},
    {"hidden_size": 24},
]
VAES: Final[Structures] = [
    {"block_out_channels": [8, 16], "down_block_types": 2, "up_block_types": 2},
    {"block_out_channels": [8, 8, 8, 8], "down_block_types": 4, "up_block_types": 4},
    {"block_out_channels": [8, 8, 8]},
    {"decoder_block_out_channels": [8, 4, 12]},
    {"decoder_block_out_channels": [8, 4]},
    {"decoder_block_out_channels": None},
    {"layers_per_block": 2},
    {"use_quant_conv": False, "use_post_quant_conv": False},
    {"use_quant_conv": False},
    {"use_post_quant_conv": REMOVED},
    {"mid_block_add_attention": False},
    {"norm_num_groups": 2},
    {"act_fn": "gelu"},
    {"latent_channels": 4},
    {"patch_size": [1, 1]},
    {"patch_size": 2},
]
VAE: Final[Fields] = {
    "batch_norm_eps": [1e-2, 1e-5, REMOVED],
    "batch_norm_momentum": [0.5, REMOVED],
    "patch_size": [[2, 2], REMOVED],
    "scaling_factor": [0.5],
    "shift_factor": [0.2],
    "latents_mean": [[0.1] * 8],
    "force_upcast": [True, False],
    "sample_size": [32, 1024],
    "act_fn": ["silu", "swish"],
    "in_channels": [3, REMOVED],
    "_class_name": ["AutoencoderKL", REMOVED],
    "unknown_field": [1],
}
CLASSES: Final[Fields] = {
    "is_distilled": [True, True, False, REMOVED, 1, None],
    "transformer": [["diffusers", "FluxTransformer2DModel"], [None, None], REMOVED],
    "vae": [["diffusers", "AutoencoderKL"], [None, None]],
    "text_encoder": [
        ["transformers", "Qwen3Model"],
        ["transformers", "Qwen2ForCausalLM"],
        [None, None],
    ],
    "tokenizer": [["transformers", "Qwen2Tokenizer"], ["transformers", "CLIPTokenizer"]],
    "_class_name": ["Flux2KleinKVPipeline", "Flux2Pipeline", REMOVED],
    "_diffusers_version": ["0.36.0", REMOVED],
    "unknown_field": [True],
}


def draw_flux2_klein(folder: Path, seed: int) -> Draft:
    """Write the checkpoint of a seed into `folder`, which must not exist."""
    draft = begin(folder, BASE, seed, write_configs)
    if draft.random.random() < 0.3:
        draft.edit(INDEX, is_distilled=True)
    change_some(draft, _CHANGES)
    draft.job = _draw_job(draft)
    return draft


def _draw_job(draft: Draft) -> Job:
    pick = draft.random.choice
    negative = pick(NEGATIVES)
    return Job(
        prompts=draft.random.sample((*PROMPTS, *ODD_PROMPTS), 2),
        negative_prompts=None if negative is None else [negative] * 2,
        scheduler=pick([None, None, "euler", "heun", "lcm", "dpmsolver++", "unipc"]),
        steps=pick([1, 2, 3, 4]),
        guidance=pick([1.0, 1.5, 3.0, 4.0, 4.0, 7.5]),
        side=pick([32, 32, 32, 48, 64]),
    )


_change_text_encoder = partial(
    change_text_encoder, structures=TEXTS, layers=28, width="joint_attention_dim", states=3
)
_CHANGES: Final[tuple[tuple[Change, int], ...]] = (
    (partial(change_transformer, fields=TRANSFORMER, structures=TRANSFORMERS), 24),
    (_change_text_encoder, 16),
    (partial(change_vae, fields=VAE, structures=VAES, pixels=4), 16),
    (change_scheduler, 26),
    (change_tokenizer, 8),
    (partial(edit_one, file=INDEX, fields=CLASSES), 8),
    (partial(add_loras, cases=CASES, write=write_loras), 8),
)
"""Kinds of changes and how often each is drawn."""
