"""Draw checkpoints of FLUX.2 klein, and jobs for them.

Input: a folder and a seed. Output: the files of a checkpoint there, but for its weights, which
diffusers' side draws for the networks that it builds. This module needs neither torch nor JAX.
"""

from pathlib import Path
from random import Random
from typing import Any, Final

from tools.parity.flow.flux2_klein_case import PROMPTS, Variant, write_configs
from tools.parity.flow.flux2_klein_loras import CASES, write_loras
from tools.parity.fuzz.draft import INDEX, REMOVED, Draft, Job
from tools.parity.fuzz.draw_flow import (
    NEGATIVES,
    ODD_PROMPTS,
    TEXT,
    TEXT_FILE,
    TRANSFORMER_FILE,
    VAE_FILE,
    Fields,
    change_scheduler,
    change_tokenizer,
    edit_one,
)

BASE: Final = "flux2_klein"
_LAYERS: Final = 28
"""The text encoder of the checkpoint to start from has this many layers."""

TRANSFORMERS: Final[list[dict[str, Any]]] = [
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
TEXTS: Final[list[dict[str, Any]]] = [
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
VAES: Final[list[dict[str, Any]]] = [
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
    random = Random(f"{BASE} {seed}")
    write_configs(folder, Variant())
    draft = Draft(folder=folder, base=BASE, random=random, network="all")
    if random.random() < 0.3:
        draft.edit(INDEX, is_distilled=True)
    kinds = [change for change, weight in _CHANGES for _ in range(weight)]
    for change in dict.fromkeys(random.choice(kinds) for _ in range(random.choice([1, 1, 2, 3]))):
        change(draft)
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


def _change_transformer(draft: Draft) -> None:
    if draft.random.random() < 0.5:
        edit_one(draft, TRANSFORMER_FILE, TRANSFORMER)
    else:
        draft.edit(TRANSFORMER_FILE, **draft.random.choice(TRANSFORMERS))


def _change_text_encoder(draft: Draft) -> None:
    pick = draft.random.choice
    if draft.random.random() < 0.6:
        name = pick(sorted(TEXT))
        value = pick(TEXT[name])
        if name == "layer_types":  # those of Z-Image are for four layers
            value = value * (_LAYERS // len(value))
        draft.edit(TEXT_FILE, **{name: value})
        return
    fields = pick(TEXTS)
    draft.edit(TEXT_FILE, **fields)
    if "hidden_size" in fields and draft.random.random() < 0.8:
        draft.edit(TRANSFORMER_FILE, joint_attention_dim=3 * fields["hidden_size"])


def _change_vae(draft: Draft) -> None:
    if draft.random.random() < 0.5:
        edit_one(draft, VAE_FILE, VAE)
        return
    fields = dict(draft.random.choice(VAES))
    for name, block in (("down_block_types", "DownEncoder"), ("up_block_types", "UpDecoder")):
        if name in fields:
            fields[name] = [f"{block}Block2D"] * fields[name]
    draft.edit(VAE_FILE, **fields)
    if "latent_channels" in fields and draft.random.random() < 0.8:
        draft.edit(TRANSFORMER_FILE, in_channels=4 * fields["latent_channels"])


def _change_index(draft: Draft) -> None:
    edit_one(draft, INDEX, CLASSES)


def _add_loras(draft: Draft) -> None:
    """Merge LoRA of the transformer that the base has."""
    write_loras(draft.folder)
    case = draft.random.choice(sorted(CASES))
    draft.loras = [(f"{name}.safetensors", scale) for name, scale in CASES[case].items()]
    draft.note(f"LoRA {case}")


_CHANGES: Final = (
    (_change_transformer, 24),
    (_change_text_encoder, 16),
    (_change_vae, 16),
    (change_scheduler, 26),
    (change_tokenizer, 8),
    (_change_index, 8),
    (_add_loras, 8),
)
"""Kinds of changes and how often each is drawn."""
