"""The structures of well-known families of checkpoints, as fields of their configs, but tiny.

Blocks, layers, heads and options are those of the published files. Widths are not: they are the
least that these heads divide.
"""

from collections.abc import Mapping
from typing import Any, Final

Fields = Mapping[str, Any]

_DOWN, _UP = "CrossAttnDownBlock2D", "CrossAttnUpBlock2D"
TEXT_WIDTH: Final = 16
SECOND_TEXT_WIDTH: Final = 24
POOLED: Final = 12
SINUSOIDS: Final = 8

SD1_UNET: Final[Fields] = {
    "sample_size": 8,
    "block_out_channels": [8, 16, 16, 16],
    "down_block_types": [_DOWN, _DOWN, _DOWN, "DownBlock2D"],
    "up_block_types": ["UpBlock2D", _UP, _UP, _UP],
    "attention_head_dim": 8,
    "cross_attention_dim": TEXT_WIDTH,
    "norm_num_groups": 4,
}
SD2_UNET: Final[Fields] = {
    **SD1_UNET,
    "block_out_channels": [20, 20, 20, 20],
    "attention_head_dim": [5, 10, 20, 20],
    "use_linear_projection": True,
}
XL_UNET: Final[Fields] = {
    "sample_size": 8,
    "block_out_channels": [20, 20, 20],
    "down_block_types": ["DownBlock2D", _DOWN, _DOWN],
    "up_block_types": [_UP, _UP, "UpBlock2D"],
    "attention_head_dim": [5, 10, 20],
    "transformer_layers_per_block": [1, 2, 10],
    "cross_attention_dim": TEXT_WIDTH + SECOND_TEXT_WIDTH,
    "norm_num_groups": 4,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": SINUSOIDS,
    "projection_class_embeddings_input_dim": POOLED + 6 * SINUSOIDS,
}

ONE_LAYER: Final[Fields] = {"layers_per_block": 1}
"""bk-sdm-base and its like: every block lost a layer (Kim et al. 2023)."""
NO_MID_BLOCK: Final[Fields] = {**ONE_LAYER, "mid_block_type": None}
"""bk-sdm-small and its like."""
THREE_LEVELS: Final[Fields] = {
    **NO_MID_BLOCK,
    "down_block_types": [_DOWN, _DOWN, _DOWN],
    "up_block_types": [_UP, _UP, _UP],
}
"""bk-sdm-tiny and its like lost the coarsest level, too."""
SSD_1B: Final[Fields] = {
    "mid_block_type": "UNetMidBlock2D",
    "transformer_layers_per_block": [1, [2, 2], [4, 4]],
    "reverse_transformer_layers_per_block": [[4, 4, 10], [2, 1, 1], 1],
}
VEGA: Final[Fields] = {
    "mid_block_type": "UNetMidBlock2D",
    "transformer_layers_per_block": [1, [1, 1], [2, 2]],
    "reverse_transformer_layers_per_block": [[2, 2, 2], [1, 1, 1], 1],
}
KOALA_700M: Final[Fields] = {**NO_MID_BLOCK, "transformer_layers_per_block": [1, 2, 5]}
KOALA_1B: Final[Fields] = {**ONE_LAYER, "transformer_layers_per_block": [1, 2, 6]}
REFINER: Final[Fields] = {
    "block_out_channels": [24, 24, 24, 24],
    "down_block_types": ["DownBlock2D", _DOWN, _DOWN, "DownBlock2D"],
    "up_block_types": ["UpBlock2D", _UP, _UP, "UpBlock2D"],
    "attention_head_dim": [6, 12, 24, 24],
    "transformer_layers_per_block": 4,
    "cross_attention_dim": SECOND_TEXT_WIDTH,
    "projection_class_embeddings_input_dim": POOLED + 5 * SINUSOIDS,
}

VAE: Final[Fields] = {
    "block_out_channels": [8, 8, 16, 16],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
    "norm_num_groups": 4,
    "sample_size": 64,
}
XL_VAE: Final[Fields] = {**VAE, "scaling_factor": 0.13025, "force_upcast": True}
PLAYGROUND_VAE: Final[Fields] = {
    **XL_VAE,
    "scaling_factor": 0.5,
    "latents_mean": [-1.6574, 1.886, -1.383, 2.5155],
    "latents_std": [8.4927, 5.9022, 6.5498, 5.2299],
}

_TEXT: Final[Fields] = {
    "model_type": "clip_text_model",
    "vocab_size": 525,
    "hidden_size": TEXT_WIDTH,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "projection_dim": POOLED,
}
SD1_TEXT: Final[Fields] = {**_TEXT, "hidden_act": "quick_gelu", "eos_token_id": 2}
SD2_TEXT: Final[Fields] = {**_TEXT, "hidden_act": "gelu", "eos_token_id": 2}
XL_SECOND_TEXT: Final[Fields] = {
    **SD2_TEXT,
    "hidden_size": SECOND_TEXT_WIDTH,
    "architectures": ["CLIPTextModelWithProjection"],
}

_BETAS: Final[Fields] = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "trained_betas": None,
}
SD_BETAS: Final[Fields] = {
    **_BETAS,
    "steps_offset": 1,
    "clip_sample": False,
    "skip_prk_steps": True,
}
"""Published files of other classes have the last two as well."""
PNDM: Final[Fields] = {**SD_BETAS, "set_alpha_to_one": False}
DDIM: Final[Fields] = {**SD_BETAS, "set_alpha_to_one": False}
V_PREDICTION: Final[Fields] = {**DDIM, "prediction_type": "v_prediction"}
TRAILING: Final[Fields] = {**SD_BETAS, "timestep_spacing": "trailing"}
LEADING: Final[Fields] = {**SD_BETAS, "timestep_spacing": "leading"}
KARRAS: Final[Fields] = {**SD_BETAS, "use_karras_sigmas": True, "timestep_spacing": "leading"}
DEIS: Final[Fields] = {
    **LEADING,
    "algorithm_type": "deis",
    "solver_type": "logrho",
    "solver_order": 2,
    "lower_order_final": True,
    "use_karras_sigmas": False,
    "prediction_type": "epsilon",
}
UNIPC: Final[Fields] = {
    **SD_BETAS,
    "solver_type": "bh2",
    "solver_order": 2,
    "predict_x0": True,
    "disable_corrector": [],
    "solver_p": None,
}
LCM: Final[Fields] = {**DDIM, "original_inference_steps": 50, "timestep_scaling": 10.0}
EDM: Final[Fields] = {
    "sigma_min": 0.002,
    "sigma_max": 80.0,
    "sigma_data": 0.5,
    "rho": 7.0,
    "solver_order": 2,
    "solver_type": "midpoint",
    "algorithm_type": "dpmsolver++",
    "lower_order_final": True,
    "euler_at_final": False,
    "final_sigmas_type": "zero",
    "prediction_type": "epsilon",
    "num_train_timesteps": 1000,
}
