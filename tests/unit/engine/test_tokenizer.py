"""Token ids equal those of transformers' CLIPTokenizer."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.jobs.prompt_weights import Piece
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.tokenizers.bpe_files import TokenizerFiles
from imagefleet.worker.engine.tokenizers.clip import CLIP, ClipTokenizer
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer
from tests.unit.engine.parity import FOLDER, PROMPTS, Oracle, read_model


def test_ids_equal_those_of_transformers(oracle: Oracle) -> None:
    ids = np.stack(oracle.load_tokenizer()(PROMPTS), axis=1)
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, oracle.answers["tokens"])


def test_a_long_prompt_is_cut_and_keeps_its_end_token() -> None:
    tokenizer = PromptTokenizer([ClipTokenizer(CheckpointFiles(FOLDER / "older"), "tokenizer")])
    fits, too_long = " ".join(["red"] * 75), " ".join(["red"] * 76)
    assert not tokenizer.truncated([Piece(fits)])
    assert tokenizer.truncated([Piece(too_long)])
    np.testing.assert_array_equal(tokenizer([fits]), tokenizer([too_long]))


@pytest.mark.parametrize(
    ("config", "length"),
    [({"max_len": 20}, 20), ({"max_len": 20, "model_max_length": 30}, 30)],
)
def test_max_len_is_an_older_name_of_model_max_length(
    checkpoint: Path, config: dict[str, int], length: int
) -> None:
    (checkpoint / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))
    assert ClipTokenizer(CheckpointFiles(checkpoint), "tokenizer").length == length


def test_the_error_names_missing_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"vocab\.json is missing"):
        ClipTokenizer(CheckpointFiles(tmp_path), "tokenizer")


def test_another_kind_of_tokenizer_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    with pytest.raises(CheckpointError, match="not BPE"):
        ClipTokenizer(CheckpointFiles(tmp_path), "tokenizer")


@pytest.mark.parametrize(
    ("config", "token_map", "padding"),
    [
        ({}, {}, "<|endoftext|>"),
        ({"pad_token": {"__type": "AddedToken", "content": "!"}}, {}, "!"),
        ({"pad_token": "<|endoftext|>"}, {"pad_token": "!"}, "!"),
        ({"pad_token": "!", "added_tokens_decoder": {}}, {"pad_token": "<|endoftext|>"}, "!"),
    ],
)
def test_the_padding_token_is_that_of_transformers(
    checkpoint: Path, config: dict[str, Any], token_map: dict[str, Any], padding: str
) -> None:
    folder = checkpoint / "tokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 77} | config))
    (folder / "special_tokens_map.json").write_text(json.dumps(token_map))
    vocabulary = json.loads((folder / "vocab.json").read_text())
    ids = ClipTokenizer(CheckpointFiles(checkpoint), "tokenizer")(["red!", "red"])
    assert set(ids[:, 5:].flat) == {vocabulary[padding]}
    # If the padding token is "!", a prompt's own "!" becomes it, as in transformers.
    assert ids[0, 2] == vocabulary["!" if padding == "!" else "!</w>"]


_END = {"content": "<|endoftext|>", "normalized": True}


@pytest.mark.parametrize(
    ("token_map", "is_end"),
    [
        ({"eos_token": _END}, False),
        ({"eos_token": _END, "pad_token": "<|endoftext|>"}, False),
        ({"eos_token": "<|endoftext|>", "pad_token": _END}, True),
        ({"eos_token": _END, "unk_token": _END, "pad_token": _END}, True),
    ],
)
def test_of_tokens_with_one_text_the_last_one_counts(
    checkpoint: Path, token_map: dict[str, Any], is_end: bool
) -> None:
    """Transformers 5.23 reads `<|EndOfText|>` as the end token, or as text, in these files."""
    folder = checkpoint / "tokenizer"
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 77}')
    (folder / "special_tokens_map.json").write_text(json.dumps(token_map))
    end = json.loads((folder / "vocab.json").read_text())["<|endoftext|>"]
    ids = ClipTokenizer(CheckpointFiles(checkpoint), "tokenizer")(["red <|EndOfText|>"])
    assert (ids[0, 2] == end) == is_end


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "tokenizer/tokenizer_config.json",
            {"model_max_length": 100},
            "must be 2 to 77, the max_pos",
        ),
        ("tokenizer/tokenizer_config.json", {"model_max_length": 10**30}, "must be 2 to 77"),
        (
            "tokenizer/tokenizer_config.json",
            {"model_max_length": None},
            "model_max_length is missing",
        ),
        (
            "tokenizer/tokenizer_config.json",
            {"padding_side": "left"},
            "padding_side='left' .*'right'",
        ),
        ("tokenizer/tokenizer_config.json", {"split_special_tokens": True}, "split_special_tokens"),
        ("tokenizer/tokenizer_config.json", {"pad_token": None}, "pad_token is null"),
        ("tokenizer/tokenizer_config.json", {"pad_token": {"content": "!"}}, "__type AddedToken"),
        (
            "tokenizer/tokenizer_config.json",
            {"bos_token": "<new>"},
            "token '<new>' has id 5.., but tex",
        ),
        (
            "text_encoder/config.json",
            {"vocab_size": 500},
            r"token '.*' has id 5\d\d, but .*=500, so ids",
        ),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(
    checkpoint: Path, file: str, change: dict[str, Any], message: str
) -> None:
    path = checkpoint / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    files = CheckpointFiles(checkpoint)
    with pytest.raises(CheckpointError, match=message):
        read_model(files).load_tokenizer(files)


@pytest.mark.parametrize("part", ["padding", "truncation"])
def test_a_tokenizer_json_that_pads_or_cuts_on_the_left_is_refused(
    tmp_path: Path, part: str
) -> None:
    folder = shutil.copytree(FOLDER / "newer", tmp_path / "checkpoint")
    file = folder / "tokenizer" / "tokenizer.json"
    content = json.loads(file.read_text())
    content[part] = {"direction": "Left"}
    file.write_text(json.dumps(content))
    config = folder / "tokenizer" / "tokenizer_config.json"
    fields = json.loads(config.read_text())
    fields.pop(f"{part}_side", None)
    config.write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=f"tokenizer.json: the {part} direction='Left'"):
        TokenizerFiles.read(CheckpointFiles(folder), "tokenizer", CLIP)
    config.write_text(json.dumps({**fields, f"{part}_side": "right"}))
    TokenizerFiles.read(CheckpointFiles(folder), "tokenizer", CLIP)
