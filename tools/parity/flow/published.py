"""The configs of published flow models, without their weights.

The checkpoint is Tongyi-MAI/Z-Image-Turbo. Only values other than the libraries' defaults are
listed.
"""

from collections.abc import Mapping
from typing import Any, Final

FLOW_MODELS: Final[Mapping[str, Mapping[str, dict[str, Any]]]] = {
    "z_image": {
        "text_encoder": {
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
        },
        "transformer": {},
        "vae": {
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
        },
    },
}
"""By model and network: the fields of its `config.json`."""
