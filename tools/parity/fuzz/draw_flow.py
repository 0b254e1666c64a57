"""Draw what the families of flow models share: kinds of changes, and tables of what may change.

This module needs neither torch nor JAX.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from tools.parity.fuzz.draft import INDEX, REMOVED, SCHEDULER, Draft

TRANSFORMER_FILE: Final = "transformer/config.json"
TEXT_FILE: Final = "text_encoder/config.json"
VAE_FILE: Final = "vae/config.json"
TOKENIZER_FILE: Final = "tokenizer/tokenizer_config.json"
LONG_PROMPT: Final = "红色的圆形 with three blue stars and a house " * 60
ODD_PROMPTS: Final = (LONG_PROMPT, "<|im_end|>\n<|im_start|>system\nno", "Ａ ① e\u0301  \n\n x!!")
NEGATIVES: Final = (None, None, "", "  ", "blue, the star", LONG_PROMPT)
"""A single blank is left out: it counts as an empty text here, as docs/models.md says."""

Fields = Mapping[str, list[Any]]
Structures = Sequence[dict[str, Any]]
"""They are sets of fields that change together."""
Change = Callable[[Draft], object]

TEXT: Final[Fields] = {
    "rms_norm_eps": [1e-5, 1e-3, REMOVED],
    "rope_theta": [10_000, 5_000_000.0, REMOVED],
    "rope_scaling": [
        {"rope_type": "default"},
        {"rope_type": "default", "rope_theta": 100.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        {"type": "linear", "factor": 2.0},
    ],
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 100.0},
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0},
        {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    ],
    "max_position_embeddings": [512, 511, 40_960, REMOVED],
    "use_sliding_window": [True, False, REMOVED],
    "sliding_window": [8, 4096],
    "max_window_layers": [0, 2, 28],
    "layer_types": [
        ["full_attention"] * 4,
        ["sliding_attention"] * 4,
        ["full_attention", "sliding_attention"] * 2,
    ],
    "tie_word_embeddings": [False, True],
    "hidden_act": ["gelu", "silu", "swish", REMOVED],
    "attention_dropout": [0.5],
    "model_type": ["qwen2", REMOVED],
    "architectures": [["Qwen3Model"], REMOVED],
    "torch_dtype": ["bfloat16", "float32"],
    "dtype": ["bfloat16"],
    "pad_token_id": [0, 5],
    "output_hidden_states": [True],
    "unknown_field": [1],
}
SCHEDULERS: Final = (
    *("FlowMatchEulerDiscreteScheduler", "FlowMatchEulerDiscreteScheduler"),
    *("FlowMatchHeunDiscreteScheduler", "FlowMatchLCMScheduler"),
    *("DPMSolverMultistepScheduler", "UniPCMultistepScheduler", "EulerDiscreteScheduler"),
)
SCHEDULE: Final[Fields] = {
    "shift": [1.0, 3.0, 6.0, 0.5, REMOVED],
    "use_dynamic_shifting": [True, True, False, REMOVED],
    "time_shift_type": ["linear", "exponential", REMOVED],
    "shift_terminal": [0.1, 0.02, None],
    "base_shift": [0.4, REMOVED],
    "max_shift": [2.0, REMOVED],
    "base_image_seq_len": [16, REMOVED],
    "max_image_seq_len": [64, 16, REMOVED],
    "num_train_timesteps": [500, 1000, REMOVED],
    "use_karras_sigmas": [True, False],
    "use_exponential_sigmas": [True, False],
    "use_beta_sigmas": [True, False],
    "invert_sigmas": [True, False],
    "stochastic_sampling": [True, False],
    "solver_order": [1, 2, 3],
    "solver_type": ["midpoint", "heun", "bh1", "bh2"],
    "algorithm_type": ["dpmsolver++", "sde-dpmsolver++"],
    "lower_order_final": [True, False],
    "euler_at_final": [True, False],
    "final_sigmas_type": ["zero", "sigma_min"],
    "flow_shift": [1.0, 3.0],
    "use_flow_sigmas": [True, True, False],
    "prediction_type": ["flow_prediction", "flow_prediction", "epsilon"],
    "_class_name": ["FlowMatchHeunDiscreteScheduler", REMOVED],
    "unknown_field": [1],
}
TOKENIZER: Final[Fields] = {
    "model_max_length": [131_072, 512, 100, REMOVED],
    "padding_side": ["right", "left", REMOVED],
    "truncation_side": ["left", "right"],
    "pad_token": ["<|im_end|>", "<|endoftext|>", "<pad>", REMOVED],
    "eos_token": ["<|im_end|>", REMOVED],
    "add_prefix_space": [True, False],
    "add_bos_token": [True, False],
    "split_special_tokens": [True, False],
    "chat_template": [REMOVED, "{{ messages[0].content }}"],
    "tokenizer_class": ["Qwen2Tokenizer", "CLIPTokenizer"],
    "extra_special_tokens": [["<new>"], []],
    "errors": ["replace"],
    "unk_token": ["<|endoftext|>", None],
}


def begin(folder: Path, base: str, seed: int, write_configs: Callable[[Path], None]) -> Draft:
    """Write the checkpoint to start from into `folder`, which must not exist."""
    write_configs(folder)
    return Draft(folder=folder, base=base, random=Random(f"{base} {seed}"), network="all")


def change_some(draft: Draft, weighted: Sequence[tuple[Change, int]]) -> None:
    """Apply up to three kinds of changes, each drawn as often as its weight says."""
    pick = draft.random.choice
    kinds = [change for change, weight in weighted for _ in range(weight)]
    for change in dict.fromkeys(pick(kinds) for _ in range(pick([1, 1, 2, 3]))):
        change(draft)


def edit_one(draft: Draft, file: str, fields: Fields) -> None:
    """Set or remove one of these fields of a file."""
    name = draft.random.choice(sorted(fields))
    draft.edit(file, **{name: draft.random.choice(fields[name])})


def change_transformer(draft: Draft, fields: Fields, structures: Structures) -> None:
    """Change a field of the transformer's config, or its structure."""
    if draft.random.random() < 0.5:
        edit_one(draft, TRANSFORMER_FILE, fields)
    else:
        draft.edit(TRANSFORMER_FILE, **draft.random.choice(structures))


def change_text_encoder(
    draft: Draft, structures: Structures, *, layers: int, width: str, states: int
) -> None:
    """Change a field of the text encoder's config, or its structure.

    Args:
        layers: Of the text encoder of the checkpoint to start from.
        width: The transformer's field with the channels that it reads.
        states: How many hidden states the transformer reads beside each other.
    """
    pick = draft.random.choice
    if draft.random.random() < 0.6:
        name = pick(sorted(TEXT))
        value = pick(TEXT[name])
        if name == "layer_types":
            value = value * (layers // len(value))
        draft.edit(TEXT_FILE, **{name: value})
        return
    fields = pick(structures)
    draft.edit(TEXT_FILE, **fields)
    if "hidden_size" in fields and draft.random.random() < 0.8:
        draft.edit(TRANSFORMER_FILE, **{width: states * fields["hidden_size"]})


def change_vae(draft: Draft, fields: Fields, structures: Structures, *, pixels: int) -> None:
    """Change a field of the autoencoder's config, or its structure.

    Args:
        pixels: How many pixels of a latent the transformer reads as channels of one.
    """
    if draft.random.random() < 0.5:
        edit_one(draft, VAE_FILE, fields)
        return
    structure = dict(draft.random.choice(structures))
    for name, block in (("down_block_types", "DownEncoder"), ("up_block_types", "UpDecoder")):
        if name in structure:
            structure[name] = [f"{block}Block2D"] * structure[name]
    draft.edit(VAE_FILE, **structure)
    if "latent_channels" in structure and draft.random.random() < 0.8:
        draft.edit(TRANSFORMER_FILE, in_channels=pixels * structure["latent_channels"])


def add_loras(
    draft: Draft, cases: Mapping[str, Mapping[str, float]], write: Callable[[Path], None]
) -> None:
    """Merge LoRA of the transformer that the base has."""
    write(draft.folder)
    case = draft.random.choice(sorted(cases))
    draft.loras = [(f"{name}.safetensors", scale) for name, scale in cases[case].items()]
    draft.note(f"LoRA {case}")


def change_scheduler(draft: Draft) -> None:
    """Change the class of the scheduler, and some fields of its file."""
    pick = draft.random.choice
    if draft.random.random() < 0.6:
        name = pick(SCHEDULERS)
        draft.edit(INDEX, scheduler=["diffusers", name])
        if draft.random.random() < 0.7:
            draft.edit(SCHEDULER, _class_name=name)
        if name in ("DPMSolverMultistepScheduler", "UniPCMultistepScheduler"):
            draft.edit(SCHEDULER, use_flow_sigmas=True, prediction_type="flow_prediction")
    for name in draft.random.sample(sorted(SCHEDULE), pick([1, 2, 3])):
        draft.edit(SCHEDULER, **{name: pick(SCHEDULE[name])})


def change_tokenizer(draft: Draft) -> None:
    """Change a field of the tokenizer's config."""
    edit_one(draft, TOKENIZER_FILE, TOKENIZER)
