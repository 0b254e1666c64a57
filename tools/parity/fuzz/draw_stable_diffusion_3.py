"""Draw checkpoints of Stable Diffusion 3, and jobs for them.

Input: a folder and a seed. Output: the files of a checkpoint there, but for its weights, which
diffusers' side draws for the networks that it builds. This module needs neither torch nor JAX.
"""

from functools import partial
from pathlib import Path
from typing import Final

from tools.parity.flow.stable_diffusion_3_case import PROMPTS, write_configs
from tools.parity.flow.stable_diffusion_3_loras import CASES, write_loras
from tools.parity.fuzz.draft import INDEX, REMOVED, Draft, Job
from tools.parity.fuzz.draw_flow import (
    NEGATIVES,
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
from tools.parity.fuzz.draw_flux1 import CLIP_TOKENIZER, CLIPS, T5_TOKENIZER, T5S, VAE, VAES

BASE: Final = "stable_diffusion_3"
_T5_FILE: Final = "text_encoder_3/config.json"
_WITHOUT_T5: Final = {"text_encoder_3": [None, None], "tokenizer_3": [None, None]}

TRANSFORMERS: Final[Structures] = [
    {"num_attention_heads": 4, "attention_head_dim": 8},
    {"num_attention_heads": 1, "attention_head_dim": 32},
    {"num_attention_heads": 3, "caption_projection_dim": 48},
    {"num_attention_heads": 3},
    {"attention_head_dim": 6, "caption_projection_dim": 12},
    {"num_layers": 1},
    {"num_layers": 1, "dual_attention_layers": []},
    {"num_layers": 4, "dual_attention_layers": [3]},
    {"dual_attention_layers": [0, 1, 2]},
    {"dual_attention_layers": [7, -1]},
    {"dual_attention_layers": []},
    {"dual_attention_layers": REMOVED},
    {"dual_attention_layers": [], "qk_norm": None},
    {"qk_norm": None},
    {"qk_norm": "layer_norm"},
    {"qk_norm": REMOVED},
    {"patch_size": 1},
    {"patch_size": 4},
    {"in_channels": 33},
    {"in_channels": 33, "out_channels": 33},
    {"out_channels": 8},
    {"pos_embed_max_size": 4},
    {"pos_embed_max_size": 5},
    {"pos_embed_max_size": None},
    {"pos_embed_max_size": 192},
]
"""Changes of its structure."""
_TRANSFORMER: Final[Fields] = {
    "patch_size": [2, REMOVED],
    "sample_size": [64, 8, REMOVED],
    "out_channels": [None, REMOVED],
    "in_channels": [REMOVED, 4],
    "num_layers": [REMOVED],
    "caption_projection_dim": [REMOVED],
    "joint_attention_dim": [40, 16, REMOVED],
    "pooled_projection_dim": [24, REMOVED],
    "pos_embed_max_size": [8, REMOVED],
    "_class_name": ["FluxTransformer2DModel", REMOVED],
    "_diffusers_version": ["0.29.0"],
    "unknown_field": [1],
}
_CLASSES: Final[Fields] = {
    "transformer": [["diffusers", "FluxTransformer2DModel"], [None, None], REMOVED],
    "vae": [["diffusers", "AutoencoderTiny"], [None, None]],
    "text_encoder": [["transformers", "CLIPTextModel"], [None, None]],
    "text_encoder_2": [["transformers", "CLIPTextModel"], [None, None], REMOVED],
    "text_encoder_3": [["transformers", "UMT5EncoderModel"], [None, None], REMOVED],
    "tokenizer": [["transformers", "CLIPTokenizerFast"], ["transformers", "T5Tokenizer"]],
    "tokenizer_3": [["transformers", "T5Tokenizer"], ["transformers", "CLIPTokenizer"]],
    "image_encoder": [["transformers", "SiglipVisionModel"], REMOVED],
    "_class_name": ["StableDiffusion3Img2ImgPipeline", "FluxPipeline", REMOVED],
    "_diffusers_version": ["0.29.0", REMOVED],
    "unknown_field": [True],
}


def draw_stable_diffusion_3(folder: Path, seed: int) -> Draft:
    """Write the checkpoint of a seed into `folder`, which must not exist."""
    draft = begin(folder, BASE, seed, write_configs)
    if draft.random.random() < 0.2:
        draft.edit(INDEX, **_WITHOUT_T5)
    change_some(draft, _CHANGES)
    draft.job = _draw_job(draft)
    return draft


def _draw_job(draft: Draft) -> Job:
    pick = draft.random.choice
    has_image = draft.random.random() < 0.3
    count = 1 if has_image else 2
    negative = pick(NEGATIVES)
    return Job(
        prompts=draft.random.sample((*PROMPTS, *ODD_PROMPTS), count),
        negative_prompts=None if negative is None else [negative] * count,
        scheduler=pick([None, None, "euler", "heun", "lcm", "dpmsolver++", "unipc"]),
        steps=pick([1, 2, 3, 4]),
        guidance=pick([0.0, 1.0, 1.5, 4.5, 4.5, 7.0]),
        clip_skip=pick([None, None, None, 1]),
        strength=pick([0.3, 0.5, 0.6, 0.9, 1.0]) if has_image else None,
        is_masked=has_image and pick([True, False]),
        side=pick([32, 32, 32, 48, 64, None]),
    )


def _change_clip(draft: Draft) -> None:
    """Change one CLIP or the other. Widths of the transformer follow mostly."""
    fields, file = (
        draft.random.choice(CLIPS),
        draft.random.choice([TEXT_FILE, "text_encoder_2/config.json"]),
    )
    before = draft.read(file)
    draft.edit(file, **fields)
    if "projection_dim" in fields and draft.random.random() < 0.8:
        pooled = draft.read(TRANSFORMER_FILE).get("pooled_projection_dim", 0)
        added = fields["projection_dim"] - before["projection_dim"]
        draft.edit(TRANSFORMER_FILE, pooled_projection_dim=pooled + added)


def _change_t5(draft: Draft) -> None:
    fields = draft.random.choice(T5S)
    draft.edit(_T5_FILE, **fields)
    if "d_model" in fields and draft.random.random() < 0.8:
        draft.edit(TRANSFORMER_FILE, joint_attention_dim=fields["d_model"])


_CHANGES: Final[tuple[tuple[Change, int], ...]] = (
    (partial(change_transformer, fields=_TRANSFORMER, structures=TRANSFORMERS), 26),
    (_change_clip, 16),
    (_change_t5, 12),
    (partial(change_vae, fields=VAE, structures=VAES, pixels=1), 12),
    (change_scheduler, 20),
    (partial(edit_one, file=TOKENIZER_FILE, fields=CLIP_TOKENIZER), 6),
    (partial(edit_one, file="tokenizer_2/tokenizer_config.json", fields=CLIP_TOKENIZER), 6),
    (partial(edit_one, file="tokenizer_3/tokenizer_config.json", fields=T5_TOKENIZER), 8),
    (partial(edit_one, file=INDEX, fields=_CLASSES), 8),
    (partial(add_loras, cases=CASES, write=write_loras), 8),
)
"""Kinds of changes and how often each is drawn."""
