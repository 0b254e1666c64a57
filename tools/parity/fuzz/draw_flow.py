"""Draw what the families of flow models share: text encoder, schedule, tokenizer.

This module needs neither torch nor JAX.
"""

from collections.abc import Mapping
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


def edit_one(draft: Draft, file: str, fields: Fields) -> None:
    """Set or remove one of these fields of a file."""
    name = draft.random.choice(sorted(fields))
    draft.edit(file, **{name: draft.random.choice(fields[name])})


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
