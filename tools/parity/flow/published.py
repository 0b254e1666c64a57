"""Hold the configs of published flow models, without their weights.

The checkpoints are Tongyi-MAI/Z-Image-Turbo, black-forest-labs/FLUX.2-klein-4B and -9B, and
black-forest-labs/FLUX.1-schnell and -dev, and stabilityai/stable-diffusion-3-medium-diffusers,
-3.5-medium and -3.5-large. Only values other than the libraries' defaults are
listed, and the class where a part has several.
"""

from collections.abc import Mapping
from typing import Any, Final

_QWEN3_4B: Final[dict[str, Any]] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "max_window_layers": 36,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
}
_FLUX2_TRANSFORMER: Final[dict[str, Any]] = {
    "_class_name": "Flux2Transformer2DModel",
    "guidance_embeds": False,
}
_FLUX2_VAE: Final[dict[str, Any]] = {"_class_name": "AutoencoderKLFlux2"}
_FLUX1_VAE: Final[dict[str, Any]] = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
    "latent_channels": 16,
    "sample_size": 1024,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
_CLIP_L: Final[dict[str, Any]] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
}
_T5_XXL: Final[dict[str, Any]] = {
    "model_type": "t5",
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10_240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
_FLUX1: Final[dict[str, dict[str, Any]]] = {
    "text_encoder": _CLIP_L,
    "text_encoder_2": _T5_XXL,
    "transformer": {"_class_name": "FluxTransformer2DModel"},
    "vae": _FLUX1_VAE,
}
_PROJECTED: Final = {"architectures": ["CLIPTextModelWithProjection"]}
_SD3: Final[dict[str, dict[str, Any]]] = {
    "text_encoder": {**_CLIP_L, **_PROJECTED, "projection_dim": 768},
    "text_encoder_2": {
        **_PROJECTED,
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_attention_heads": 20,
        "num_hidden_layers": 32,
        "hidden_act": "gelu",
        "projection_dim": 1280,
    },
    "text_encoder_3": _T5_XXL,
    "transformer": {
        "_class_name": "SD3Transformer2DModel",
        "num_layers": 24,
        "num_attention_heads": 24,
        "caption_projection_dim": 1536,
        "pos_embed_max_size": 192,
    },
    "vae": {**_FLUX1_VAE, "scaling_factor": 1.5305, "shift_factor": 0.0609},
}

FLOW_MODELS: Final[Mapping[str, Mapping[str, dict[str, Any]]]] = {
    "z_image": {
        "text_encoder": _QWEN3_4B,
        "transformer": {},
        "vae": _FLUX1_VAE,
    },
    "flux2_klein_4b": {
        "text_encoder": _QWEN3_4B,
        "transformer": {
            **_FLUX2_TRANSFORMER,
            "num_layers": 5,
            "num_single_layers": 20,
            "num_attention_heads": 24,
            "joint_attention_dim": 7680,
        },
        "vae": _FLUX2_VAE,
    },
    "flux2_klein_9b": {
        "text_encoder": {
            **_QWEN3_4B,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "tie_word_embeddings": False,
        },
        "transformer": {
            **_FLUX2_TRANSFORMER,
            "num_layers": 8,
            "num_single_layers": 24,
            "num_attention_heads": 32,
            "joint_attention_dim": 12_288,
        },
        "vae": _FLUX2_VAE,
    },
    "flux1_schnell": _FLUX1,
    "flux1_dev": {
        **_FLUX1,
        "transformer": {"_class_name": "FluxTransformer2DModel", "guidance_embeds": True},
    },
    "sd3_medium": _SD3,
    "sd3.5_medium": {
        **_SD3,
        "transformer": {
            **_SD3["transformer"],
            "pos_embed_max_size": 384,
            "dual_attention_layers": list(range(13)),
            "qk_norm": "rms_norm",
        },
    },
    "sd3.5_large": {
        **_SD3,
        "transformer": {
            **_SD3["transformer"],
            "num_layers": 38,
            "num_attention_heads": 38,
            "caption_projection_dim": 2432,
            "qk_norm": "rms_norm",
        },
    },
}
"""By model and network: the fields of its `config.json`."""
