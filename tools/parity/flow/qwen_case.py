"""Describe a tiny Qwen3. Both sides draw its weights by their names; see `known.write.draw`."""

from typing import Any, Final

from tools.parity.flow.qwen_tokenizer import vocabulary_and_merges

FURTHER_TOKENS: Final = 9
"""Tokens that the tokenizer has beside its vocabulary."""
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": len(vocabulary_and_merges()[0]) + FURTHER_TOKENS,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 4,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "hidden_act": "silu",
}
LENGTH: Final = 40
PROMPTS: Final = ("a red circle on blue", "Zwölf  Bücher, 3 for €5!", "", "the blue star " * 20)
"""The last one is longer than `LENGTH` tokens."""
