"""Describe a tiny T5. Both sides draw its weights by their names; see `known.write.draw`."""

from collections.abc import Mapping
from typing import Any, Final

from tools.parity.flow.t5_tokenizer import pieces

CONFIG: Final[dict[str, Any]] = {
    "architectures": ["T5EncoderModel"],
    "model_type": "t5",
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "vocab_size": len(pieces()) + 5,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "feed_forward_proj": "gated-gelu",
    "dense_act_fn": "gelu_new",
    "is_gated_act": True,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-6,
    "dropout_rate": 0.1,
    "tie_word_embeddings": False,
    "use_cache": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
CONFIGS: Final[Mapping[str, dict[str, Any]]] = {
    "wide": CONFIG,
    "few classes": {
        **CONFIG,
        "num_heads": 2,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
        "layer_norm_epsilon": 1e-3,
    },
}
LENGTH: Final = 160
"""Some tokens are more than 128 apart."""
STATES_APART: Final = 7
"""Every seventh state is compared."""
PROMPTS: Final = ("a red circle on blue", "Zwölf  Bücher, 3 for €5! ", "", "the blue star " * 90)
CLASSES: Final = ((32, 128), (8, 20), (64, 300), (4, 2))
"""Distances are counted in so many classes, and up to so many tokens."""
MOST_TOKENS: Final = 512
