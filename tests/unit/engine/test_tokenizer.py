"""Token ids equal those of transformers' CLIPTokenizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.build_engine import load_tokenizer
from imagefleet.worker.engine.tokenizer import ClipTokenizer
from tests.unit.engine.parity import FOLDER, PROMPTS, Oracle


def test_ids_equal_those_of_transformers(oracle: Oracle) -> None:
    tokenizer = load_tokenizer(oracle.folder, oracle.configs)
    ids = tokenizer(PROMPTS)
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, oracle.answers["tokens"])


def test_a_long_prompt_is_cut_and_keeps_its_end_token() -> None:
    tokenizer = ClipTokenizer(FOLDER / "older" / "tokenizer", 77)
    fits, too_long = " ".join(["red"] * 75), " ".join(["red"] * 76)
    assert not tokenizer.truncated(fits)
    assert tokenizer.truncated(too_long)
    np.testing.assert_array_equal(tokenizer([fits]), tokenizer([too_long]))


def test_the_error_names_missing_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        ClipTokenizer(tmp_path, 77)


def test_another_kind_of_tokenizer_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    with pytest.raises(CheckpointError, match="not BPE"):
        ClipTokenizer(tmp_path, 77)


@pytest.mark.parametrize(
    ("config", "token_map", "padding"),
    [
        ({}, {}, "<|endoftext|>"),
        ({"pad_token": {"content": "!"}}, {}, "!"),
        ({"pad_token": "<|endoftext|>"}, {"pad_token": "!"}, "!"),
        ({"pad_token": "!", "added_tokens_decoder": {}}, {"pad_token": "<|endoftext|>"}, "!"),
    ],
)
def test_the_padding_token_is_that_of_transformers(
    checkpoint: Path, config: dict[str, Any], token_map: dict[str, Any], padding: str
) -> None:
    folder = checkpoint / "tokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text(json.dumps(token_map))
    vocabulary = json.loads((folder / "vocab.json").read_text())
    ids = ClipTokenizer(folder, 77)(["red!", "red"])
    assert set(ids[:, 5:].flat) == {vocabulary[padding]}
    # If the padding token is "!", a prompt's own "!" becomes it, as in transformers.
    assert ids[0, 2] == vocabulary["!" if padding == "!" else "!</w>"]
