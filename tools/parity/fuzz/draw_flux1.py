"""Draw checkpoints of FLUX.1, and jobs for them.

Input: a folder and a seed. Output: the files of a checkpoint there, but for its weights, which
diffusers' side draws for the networks that it builds. This module needs neither torch nor JAX.
"""

from functools import partial
from pathlib import Path
from typing import Final

from tools.parity.flow.flux1_case import FILL, PROMPTS, SCHNELL, write_configs
from tools.parity.flow.flux1_loras import CASES, write_loras
from tools.parity.fuzz.draft import INDEX, REMOVED, SCHEDULER, Draft, Job
from tools.parity.fuzz.draw_flow import (
    ODD_PROMPTS,
    TEXT_FILE,
    TOKENIZER_FILE,
    TRANSFORMER_FILE,
    Change,
    Fields,
    Structures,
    add_loras,
    begin,
    change_scheduler,
    change_some,
    change_transformer,
    change_vae,
    edit_one,
)

BASE: Final = "flux1"
_T5_FILE: Final = "text_encoder_2/config.json"
_T5_TOKENIZER_FILE: Final = "tokenizer_2/tokenizer_config.json"

TRANSFORMERS: Final[Structures] = [
    {"num_attention_heads": 4, "attention_head_dim": 8, "axes_dims_rope": [4, 2, 2]},
    {"num_attention_heads": 1, "attention_head_dim": 32, "axes_dims_rope": [8, 12, 12]},
    {"num_attention_heads": 3},
    {"num_layers": 0},
    {"num_single_layers": 0},
    {"num_layers": 0, "num_single_layers": 0},
    {"num_layers": 3, "num_single_layers": 1},
    {"axes_dims_rope": [2, 6, 8]},
    {"axes_dims_rope": [8, 8]},
    {"axes_dims_rope": [5, 5, 6]},
    {"axes_dims_rope": [4, 6, 8]},
    {"guidance_embeds": False},
    {"guidance_embeds": REMOVED},
    {"patch_size": 2},
    {"out_channels": 64},
    {"out_channels": None},
    {"out_channels": 16},
    {"in_channels": 128, "out_channels": 64},
]
"""Changes of its structure."""
_TRANSFORMER: Final[Fields] = {
    "patch_size": [1, REMOVED],
    "guidance_embeds": [True, False],
    "axes_dims_rope": [REMOVED],
    "in_channels": [16, 384, REMOVED],
    "joint_attention_dim": [32, REMOVED],
    "pooled_projection_dim": [24, REMOVED],
    "_class_name": ["Flux2Transformer2DModel", REMOVED],
    "_diffusers_version": ["0.30.0"],
    "_name_or_path": ["somewhere"],
    "unknown_field": [1],
}
CLIPS: Final[Structures] = [
    {"num_hidden_layers": 3},
    {"num_attention_heads": 4},
    {"hidden_act": "gelu"},
    {"hidden_act": "relu"},
    {"layer_norm_eps": 1e-3},
    {"eos_token_id": 5},
    {"eos_token_id": 0},
    {"eos_token_id": REMOVED},
    {"projection_dim": 24},
    {"max_position_embeddings": 80},
    {"max_position_embeddings": 60},
    {"intermediate_size": REMOVED},
    {"hidden_size": 24},
    {"hidden_size": 24, "num_attention_heads": 5},
    {"architectures": ["CLIPTextModelWithProjection"]},
    {"torch_dtype": "bfloat16"},
    {"unknown_field": 1},
]
T5S: Final[Structures] = [
    {"num_layers": 1},
    {"num_heads": 2},
    {"d_kv": 4},
    {"d_ff": 24},
    {"d_ff": REMOVED},
    {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
    {"relative_attention_max_distance": REMOVED},
    {"layer_norm_epsilon": 1e-3},
    {"feed_forward_proj": "relu"},
    {"feed_forward_proj": "gated-silu"},
    {"feed_forward_proj": REMOVED},
    {"is_gated_act": False},
    {"dense_act_fn": "relu"},
    {"dense_act_fn": REMOVED},
    {"tie_word_embeddings": True},
    {"tie_word_embeddings": REMOVED},
    {"num_decoder_layers": 1},
    {"is_encoder_decoder": False},
    {"model_type": "umt5"},
    {"model_type": REMOVED},
    {"architectures": ["T5ForConditionalGeneration"]},
    {"classifier_dropout": 0.1, "initializer_factor": 0.5},
    {"scalable_attention": True},
    {"d_model": 32},
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
    "transformer": [["diffusers", "Flux2Transformer2DModel"], [None, None], REMOVED],
    "vae": [["diffusers", "AutoencoderTiny"], [None, None]],
    "text_encoder": [
        ["transformers", "CLIPTextModelWithProjection"],
        ["transformers", "T5EncoderModel"],
        [None, None],
    ],
    "text_encoder_2": [["transformers", "UMT5EncoderModel"], [None, None], REMOVED],
    "tokenizer": [["transformers", "CLIPTokenizerFast"], ["transformers", "T5Tokenizer"]],
    "tokenizer_2": [["transformers", "T5Tokenizer"], ["transformers", "CLIPTokenizer"]],
    "image_encoder": [["transformers", "CLIPVisionModelWithProjection"], REMOVED],
    "_class_name": ["FluxControlPipeline", "FluxKontextPipeline", "ChromaPipeline", REMOVED],
    "_diffusers_version": ["0.30.0", REMOVED],
    "unknown_field": [True],
}
CLIP_TOKENIZER: Final[Fields] = {
    "model_max_length": [77, 20, 100, REMOVED],
    "padding_side": ["right", "left"],
    "truncation_side": ["left", "right"],
    "pad_token": ["!", "<|endoftext|>", "<pad>", None],
    "bos_token": ["<|startoftext|>", "<|endoftext|>", REMOVED],
    "eos_token": ["<|endoftext|>", "blue</w>", REMOVED],
    "unk_token": ["<|endoftext|>", "!", REMOVED],
    "add_prefix_space": [True, False],
    "do_lower_case": [True, False],
    "tokenizer_class": ["T5Tokenizer"],
}
T5_TOKENIZER: Final[Fields] = {
    "model_max_length": [512, 100, REMOVED],
    "padding_side": ["right", "left"],
    "truncation_side": ["left", "right"],
    "pad_token": ["<pad>", "</s>", "<unk>", "<new>", REMOVED],
    "eos_token": ["</s>", "<pad>", REMOVED],
    "unk_token": ["<unk>", "<pad>", REMOVED],
    "extra_ids": [0, 10, 100, REMOVED],
    "additional_special_tokens": [["red"], [], REMOVED],
    "extra_special_tokens": [["<new>"], []],
    "add_prefix_space": [True, False],
    "legacy": [True, False, REMOVED],
    "split_special_tokens": [True, False],
    "tokenizer_class": ["T5TokenizerFast", "CLIPTokenizer", REMOVED],
    "clean_up_tokenization_spaces": [False],
    "sp_model_kwargs": [{}],
}


def draw_flux1(folder: Path, seed: int) -> Draft:
    """Write the checkpoint of a seed into `folder`, which must not exist."""
    draft = begin(folder, BASE, seed, write_configs)
    kind = draft.random.choice(["dev", "dev", "schnell", "fill"])
    if kind == "schnell":
        draft.edit(TRANSFORMER_FILE, guidance_embeds=False)
        draft.edit(SCHEDULER, **SCHNELL)
    elif kind == "fill":
        draft.edit(INDEX, **FILL.index)
        draft.edit(TRANSFORMER_FILE, **FILL.transformer)
    change_some(draft, _CHANGES)
    draft.job = _draw_job(draft, fills=kind == "fill")
    return draft


def _draw_job(draft: Draft, *, fills: bool) -> Job:
    pick = draft.random.choice
    has_image = fills or draft.random.random() < 0.3
    count = 1 if has_image else 2
    return Job(
        prompts=draft.random.sample((*PROMPTS, *ODD_PROMPTS), count),
        negative_prompts=pick([None, ["blue"] * count, [""] * count]),
        scheduler=pick([None, None, "euler", "heun", "lcm", "dpmsolver++", "unipc"]),
        steps=pick([1, 2, 3, 4]),
        guidance=pick([0.0, 1.0, 1.5, 3.5, 3.5, 7.5, 30.0]),
        true_cfg_scale=1.0 if fills else pick([1.0, 1.0, 1.5, 4.0]),
        strength=pick([0.3, 0.5, 0.6, 0.9, 1.0]) if has_image else None,
        is_masked=fills or (has_image and pick([True, False])),
        side=pick([32, 32, 32, 48, 64]),
    )


def _change_clip(draft: Draft) -> None:
    fields = draft.random.choice(CLIPS)
    draft.edit(TEXT_FILE, **fields)
    if "hidden_size" in fields and draft.random.random() < 0.8:
        draft.edit(TRANSFORMER_FILE, pooled_projection_dim=fields["hidden_size"])


def _change_t5(draft: Draft) -> None:
    fields = draft.random.choice(T5S)
    draft.edit(_T5_FILE, **fields)
    if "d_model" in fields and draft.random.random() < 0.8:
        draft.edit(TRANSFORMER_FILE, joint_attention_dim=fields["d_model"])


_CHANGES: Final[tuple[tuple[Change, int], ...]] = (
    (partial(change_transformer, fields=_TRANSFORMER, structures=TRANSFORMERS), 20),
    (_change_clip, 12),
    (_change_t5, 16),
    (partial(change_vae, fields=VAE, structures=VAES, pixels=4), 12),
    (change_scheduler, 24),
    (partial(edit_one, file=TOKENIZER_FILE, fields=CLIP_TOKENIZER), 6),
    (partial(edit_one, file=_T5_TOKENIZER_FILE, fields=T5_TOKENIZER), 10),
    (partial(edit_one, file=INDEX, fields=CLASSES), 8),
    (partial(add_loras, cases=CASES, write=write_loras), 12),
)
"""Kinds of changes and how often each is drawn."""
