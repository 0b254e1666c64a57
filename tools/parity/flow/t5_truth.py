"""Ask transformers for the states of T5.

There is no input. The output is the states of the prompts of `t5_case`, and the classes of
distances between tokens.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import T5Config, T5EncoderModel, T5Tokenizer
from transformers.models.t5.modeling_t5 import T5Attention

from tools.parity.checkpoints import Tensors
from tools.parity.flow.checkpoint import write_weights
from tools.parity.flow.t5_case import (
    CLASSES,
    CONFIGS,
    LENGTH,
    MOST_TOKENS,
    PROMPTS,
    STATES_APART,
)
from tools.parity.flow.t5_tokenizer import write_tokenizer


@torch.no_grad()
def t5_states() -> Tensors:
    """Return the states by the names of the configs, and the classes."""
    answers: Tensors = {}
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        inputs = T5Tokenizer.from_pretrained(folder)(
            list(PROMPTS),
            padding="max_length",
            max_length=LENGTH,
            truncation=True,
            return_tensors="pt",
        )
    for name, config in CONFIGS.items():
        states = _encoder(config)(inputs.input_ids).last_hidden_state
        answers[f"states|{name}"] = states[:, ::STATES_APART].contiguous()
    distances = torch.arange(1 - MOST_TOKENS, MOST_TOKENS)
    for count, most in CLASSES:
        classes = T5Attention._relative_position_bucket(
            distances, num_buckets=count, max_distance=most
        )
        answers[f"classes|{count}|{most}"] = classes.int()
    return answers


def _encoder(config: dict[str, Any]) -> T5EncoderModel:
    network = T5EncoderModel(T5Config(**config))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text_encoder_2"
        path.mkdir()
        network.config.save_pretrained(path)
        write_weights(Path(folder), path.name, encoder_shapes(network))
        return T5EncoderModel.from_pretrained(path)


def encoder_shapes(network: T5EncoderModel) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight that files have."""
    return {
        key: tuple(each.shape)
        for key, each in network.state_dict().items()
        if key != "encoder.embed_tokens.weight"
    }
