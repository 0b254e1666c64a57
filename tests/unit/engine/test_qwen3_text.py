"""The text encoder Qwen3 computes the hidden states of transformers, from the same weights."""

import json
from collections.abc import Callable, Mapping
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
from imagefleet.worker.engine.checkpoint.weights import Params, WeightMapping, require_complete
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.networks.qwen3_text import Qwen3Config, Qwen3Text
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.tokenizers.qwen import QwenTokenizer
from tests.unit.engine.parity import FOLDER, stored_shapes, worst
from tools.parity.flow.qwen_case import CONFIG, LENGTH, PROMPTS
from tools.parity.flow.qwen_tokenizer import write_tokenizer
from tools.parity.known.write import draw

ANSWERS: Final = load_file(FOLDER / "qwen3.safetensors")
TOLERANCE: Final = 5e-6
"""Relative tolerance. Measured: 1e-6."""
LAYERS: Final = 4
ALL: Final = tuple(range(LAYERS + 1))


def _write(folder: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]] = dict) -> None:
    """Write the weights of the whole model, with the prefix of transformers."""
    whole = abstract_network(Qwen3Text, Qwen3Config.from_json(CONFIG, ALL))
    drawn: dict[str, Any] = {
        f"model.{key}": draw("text_encoder", key, shape)
        for key, shape in stored_shapes(whole).items()
    }
    (folder / "text_encoder").mkdir()
    save_file(dict(change(drawn)), folder / "text_encoder" / "model.safetensors")


def _load(folder: Path, states: tuple[int, ...]) -> tuple[nnx.GraphDef[Qwen3Text], Params]:
    network = abstract_network(Qwen3Text, Qwen3Config.from_json(CONFIG, states))
    files = CheckpointFiles(folder).open_weights(["text_encoder"])["text_encoder"]
    mapping = WeightMapping("text_encoder", network, files)
    require_complete([mapping])
    graph: Any = nnx.graphdef(network)
    return graph, mapping.load(np.dtype(np.float32), Placement.of(1))


def _states(folder: Path, states: tuple[int, ...]) -> list[jax.Array]:
    graph, weights = _load(folder, states)
    write_tokenizer(folder / "tokenizer")
    tokenizer = QwenTokenizer(CheckpointFiles(folder), "tokenizer", length=LENGTH, thinks=True)
    ids = jnp.asarray(tokenizer(PROMPTS))

    def run(weights: Params, ids: jax.Array) -> Any:
        encoder: Any = nnx.merge(graph, weights)
        return encoder(ids)

    return list(jax.jit(run)(weights, ids))


def test_every_hidden_state_is_that_of_transformers(tmp_path: Path) -> None:
    """Those of padding, too: it attends to the prompt, but to no padding."""
    _write(tmp_path)
    for ours, theirs in zip(_states(tmp_path, ALL), ANSWERS["states"], strict=True):
        assert worst(ours, theirs) < TOLERANCE


@pytest.mark.parametrize(("states", "indexes"), [((-2,), (3,)), ((1, 3), (1, 3)), ((-5,), (0,))])
def test_layers_after_the_last_state_are_not_loaded(
    tmp_path: Path, states: tuple[int, ...], indexes: tuple[int, ...]
) -> None:
    _write(tmp_path)
    for ours, index in zip(_states(tmp_path, states), indexes, strict=True):
        assert worst(ours, ANSWERS["states"][index]) < TOLERANCE
    _, weights = _load(tmp_path, states)
    assert len(weights.get("layers", ())) == max(indexes)
    assert "norm" not in weights


@pytest.mark.parametrize(
    "change",
    [
        lambda drawn: {key.removeprefix("model."): value for key, value in drawn.items()},
        lambda drawn: {**drawn, "lm_head.weight": np.zeros((4, 4), np.float32)},
        lambda drawn: {key: value for key, value in drawn.items() if "layers.3" not in key},
    ],
    ids=["without the prefix", "with a head", "without a later layer"],
)
def test_files_may_have_other_parts_of_the_model(
    tmp_path: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> None:
    _write(tmp_path, change)
    assert worst(_states(tmp_path, (3,))[0], ANSWERS["states"][3]) < TOLERANCE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda drawn: {
                key: each for key, each in drawn.items() if "2.self_attn.q_n" not in key
            },
            r"layers\.2\.self_attn\.q_norm\.weight is missing",
        ),
        (
            lambda drawn: {**drawn, "model.layers.4.mlp.up_proj.weight": np.zeros(4, np.float32)},
            r"layers\.4\.mlp\.up_proj\.weight is not a weight of this network",
        ),
    ],
)
def test_a_file_that_does_not_match_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]], message: str
) -> None:
    _write(tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        _load(tmp_path, (3,))


def test_newer_configs_have_the_same_fields_elsewhere() -> None:
    older = Qwen3Config.from_json(CONFIG, (-2,))
    fields = {key: value for key, value in CONFIG.items() if not key.startswith("rope")}
    rope = {"rope_type": "default", "rope_theta": 1_000_000}
    kinds = ["full_attention"] * LAYERS
    newer = {**fields, "rope_parameters": rope, "layer_types": kinds, "dtype": "float32"}
    assert Qwen3Config.from_json(newer, (-2,)) == older
    assert Qwen3Config.from_json(fields, (-2,)).rope_theta == 10_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen2"}, "model_type='qwen2'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"layer_types": ["sliding_attention"] * LAYERS}, "layer_types must be 4 times"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3 does not divide"),
        ({"head_dim": 7}, "head_dim=7 must be even"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn'"),
        ({"rope_scaling": {"factor": 2.0}}, "unknown field 'factor'"),
        ({"rope_scaling": 5}, "rope_parameters=5 is not an object"),
        ({"rope_parameters": {"rope_theta": "1"}}, "rope_theta='1' is not a number"),
        ({"num_hidden_layers": 1}, "num_hidden_layers=1 is too small.* hidden states 1, 3"),
    ],
)
def test_a_config_of_another_model_is_refused(change: dict[str, Any], message: str) -> None:
    config = json.loads(json.dumps({**CONFIG, **change}))
    with pytest.raises(CheckpointError, match=message):
        Qwen3Config.from_json(config, (1, 3))
