"""The encoder of T5 computes the states of transformers, from the same weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.weights import WeightMapping, require_complete
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.networks.t5_text import T5Config, T5Text, distance_classes
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.tokenizers.t5 import T5Tokenizer
from tests.unit.engine.parity import FOLDER, stored_shapes, worst
from tools.parity.flow.t5_case import (
    CLASSES,
    CONFIG,
    CONFIGS,
    LENGTH,
    MOST_TOKENS,
    PROMPTS,
    STATES_APART,
)
from tools.parity.flow.t5_tokenizer import write_tokenizer
from tools.parity.known.write import draw

ANSWERS: Final = load_file(FOLDER / "t5.safetensors")
TOLERANCE: Final = 1e-5
"""Relative tolerance."""
NAME: Final = "text_encoder_2"
FILE: Final = f"{NAME}/config.json"


def _states(
    folder: Path, config: dict[str, Any], further: Mapping[str, tuple[int, ...]]
) -> jax.Array:
    """Return our states with weights from a file that has further ones, too."""
    network = abstract_network(T5Text, T5Config.from_json(config, FILE))
    shapes = {**stored_shapes(network), **further}
    drawn = {key: draw(NAME, key, shape) for key, shape in shapes.items()}
    (folder / NAME).mkdir()
    save_file(drawn, folder / NAME / "model.safetensors")
    write_tokenizer(folder / "tokenizer")
    files = CheckpointFiles(folder)
    mapping = WeightMapping(NAME, network, files.open_weights([NAME])[NAME])
    require_complete([mapping])
    encoder: Any = nnx.merge(
        nnx.graphdef(network), mapping.load(np.dtype(np.float32), Placement.of(1))
    )
    ids = T5Tokenizer(files, "tokenizer", length=LENGTH)(PROMPTS)
    states: jax.Array = encoder(jnp.asarray(ids))
    return states


@pytest.mark.parametrize("name", CONFIGS)
def test_the_states_of_all_tokens_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    """Those of padding, too. A file may have the embeddings twice, and a decoder."""
    further = {"encoder.embed_tokens.weight": (2, 2), "decoder.final_layer_norm.weight": (2,)}
    states = _states(tmp_path, CONFIGS[name], further)
    assert worst(states[:, ::STATES_APART], ANSWERS[f"states|{name}"]) < TOLERANCE


@pytest.mark.parametrize(("count", "most"), CLASSES)
def test_distances_are_in_the_classes_of_transformers(count: int, most: int) -> None:
    change = {"relative_attention_num_buckets": count, "relative_attention_max_distance": most}
    config = T5Config.from_json({**CONFIG, **change}, FILE)
    classes = distance_classes(config, MOST_TOKENS)
    np.testing.assert_array_equal(classes, ANSWERS[f"classes|{count}|{most}"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "umt5"}, "model_type='umt5'"),
        ({"feed_forward_proj": "relu"}, "feed_forward_proj='relu'"),
        ({"dense_act_fn": "relu"}, "dense_act_fn='relu'"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"relative_attention_num_buckets": 6}, "=6 must be a multiple of 4"),
        ({"relative_attention_max_distance": 8}, "max_distance=8 must be above 8"),
        ({"quantization_config": {"bits": 8}}, "quantization_config="),
    ],
)
def test_a_config_of_another_model_is_refused(change: dict[str, Any], message: str) -> None:
    config = json.loads(json.dumps({**CONFIG, **change}))
    with pytest.raises(CheckpointError, match=message):
        T5Config.from_json(config, FILE)
