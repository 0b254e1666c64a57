"""The configs of published checkpoints, without their weights.

The checkpoints are CompVis/stable-diffusion-v1-4, stabilityai/stable-diffusion-2-1-base and
stabilityai/stable-diffusion-xl-base-1.0. Only values other than the libraries' defaults are listed.
"""

from collections.abc import Mapping
from typing import Any, Final

_CROSS_DOWN, _CROSS_UP = "CrossAttnDownBlock2D", "CrossAttnUpBlock2D"
_CLIP_L = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
}
_AUTOENCODER = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "layers_per_block": 2,
    "sample_size": 512,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}
_FOUR_LEVELS = {
    "down_block_types": [*[_CROSS_DOWN] * 3, "DownBlock2D"],
    "sample_size": 64,
    "up_block_types": ["UpBlock2D", *[_CROSS_UP] * 3],
}

PUBLISHED: Final[Mapping[str, Mapping[str, dict[str, Any]]]] = {
    "sd14": {
        "text_encoder": _CLIP_L,
        "unet": {**_FOUR_LEVELS, "attention_head_dim": 8, "cross_attention_dim": 768},
        "vae": _AUTOENCODER,
        "safety_checker": {
            "projection_dim": 768,
            "vision_config": {
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "patch_size": 14,
            },
        },
    },
    "sd21": {
        "text_encoder": {
            "hidden_act": "gelu",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_hidden_layers": 23,
        },
        "unet": {
            **_FOUR_LEVELS,
            "attention_head_dim": [5, 10, 20, 20],
            "cross_attention_dim": 1024,
            "use_linear_projection": True,
        },
        "vae": _AUTOENCODER,
    },
    "sdxl": {
        "text_encoder": {**_CLIP_L, "projection_dim": 768, "eos_token_id": 2},
        "text_encoder_2": {
            "architectures": ["CLIPTextModelWithProjection"],
            "eos_token_id": 2,
            "hidden_act": "gelu",
            "hidden_size": 1280,
            "intermediate_size": 5120,
            "num_attention_heads": 20,
            "num_hidden_layers": 32,
            "projection_dim": 1280,
        },
        "unet": {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "attention_head_dim": [5, 10, 20],
            "block_out_channels": [320, 640, 1280],
            "cross_attention_dim": 2048,
            "down_block_types": ["DownBlock2D", _CROSS_DOWN, _CROSS_DOWN],
            "projection_class_embeddings_input_dim": 2816,
            "sample_size": 128,
            "transformer_layers_per_block": [1, 2, 10],
            "up_block_types": [_CROSS_UP, _CROSS_UP, "UpBlock2D"],
            "use_linear_projection": True,
        },
        "vae": {**_AUTOENCODER, "scaling_factor": 0.13025, "force_upcast": True},
    },
}
"""By model and network: the fields of its `config.json`."""

_OF_UNETS_ALONE: Final = ("sample_size", "up_block_types")
_CONTROLLED_XL: Final = {
    name: value for name, value in PUBLISHED["sdxl"]["unet"].items() if name not in _OF_UNETS_ALONE
}
CONTROL_NETS: Final[Mapping[str, Mapping[str, dict[str, Any]]]] = {
    "sd-controlnet-canny": {
        "controlnet": {
            "attention_head_dim": 8,
            "conditioning_embedding_out_channels": [16, 32, 96, 256],
            "cross_attention_dim": 768,
            "down_block_types": [*[_CROSS_DOWN] * 3, "DownBlock2D"],
        }
    },
    "controlnet-canny-sdxl-1.0": {"controlnet": _CONTROLLED_XL},
    "controlnet-canny-sdxl-1.0-mid": {
        "controlnet": {**_CONTROLLED_XL, "transformer_layers_per_block": [1, 1, 1]}
    },
}
"""The same of ControlNets: of lllyasviel and of diffusers."""
