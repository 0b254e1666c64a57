"""Token ids of prompts equal those of transformers' T5Tokenizer."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.jobs.prompt_weights import Piece
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer
from imagefleet.worker.engine.tokenizers.t5 import T5Tokenizer
from tools.parity.flow.t5_tokenizer import CHARACTERS, WRITTEN, pieces, prompts, write_tokenizer

LENGTH = 256


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path / "tokenizer")
    return tmp_path


def _read(folder: Path, length: int = LENGTH) -> T5Tokenizer:
    return T5Tokenizer(CheckpointFiles(folder), "tokenizer", length=length)


def _edit(folder: Path, name: str, **fields: Any) -> None:
    path = folder / "tokenizer" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _remove(folder: Path, name: str, *fields: str) -> None:
    path = folder / "tokenizer" / name
    kept = {key: each for key, each in json.loads(path.read_text()).items() if key not in fields}
    path.write_text(json.dumps(kept))


def _assert_equal(folder: Path, texts: list[str]) -> None:
    theirs: Any = transformers.T5Tokenizer.from_pretrained(folder / "tokenizer")
    inputs = theirs(texts, padding="max_length", max_length=LENGTH, truncation=True)
    ours = _read(folder)(texts)
    assert ours.dtype == np.int32
    np.testing.assert_array_equal(ours, inputs["input_ids"])


def test_ids_of_prompts_in_many_scripts_equal_those_of_transformers(folder: Path) -> None:
    texts = list(prompts())
    assert len(texts) > 600
    _assert_equal(folder, texts)


def _normalize_in_a_sequence(folder: Path) -> None:
    """transformers reads the table of characters alone."""
    table = {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(CHARACTERS).decode(),
    }
    parts = [{"type": "Lowercase"}, table]
    _edit(folder, "tokenizer.json", normalizer={"type": "Sequence", "normalizers": parts})


def _list_no_tokens(folder: Path) -> None:
    _remove(folder, "tokenizer_config.json", "additional_special_tokens", "added_tokens_decoder")
    _edit(folder, "tokenizer.json", added_tokens=[])


def _end_with_another_token(folder: Path) -> None:
    _edit(folder, "tokenizer_config.json", eos_token="<extra_id_7>", pad_token="<extra_id_8>")


def _have_another_processor(folder: Path) -> None:
    _edit(
        folder,
        "tokenizer.json",
        post_processor={
            "type": "ByteLevel",
            "trim_offsets": True,
            "add_prefix_space": True,
            "use_regex": True,
        },
    )


@pytest.mark.parametrize(
    "change",
    [
        _normalize_in_a_sequence,
        _list_no_tokens,
        _end_with_another_token,
        _have_another_processor,
        lambda folder: _edit(folder, "tokenizer.json", normalizer=None),
        lambda folder: _edit(folder, "tokenizer_config.json", add_eos_token=False),
        lambda folder: _edit(folder, "tokenizer_config.json", extra_special_tokens=["red"]),
    ],
)
def test_files_are_read_as_transformers_reads_them(
    folder: Path, change: Callable[[Path], None]
) -> None:
    change(folder)
    _assert_equal(folder, list(WRITTEN))


def test_a_long_prompt_is_cut_and_keeps_its_end(folder: Path) -> None:
    tokenizer = PromptTokenizer([_read(folder, length=20)])
    fits, too_long = " red" * 19, " red" * 20
    assert not tokenizer.truncated([Piece(fits)])
    assert tokenizer.truncated([Piece(too_long)])
    chunks = tokenizer.chunks([[Piece(fits)], [Piece(too_long)]], 1, 1)
    np.testing.assert_array_equal(chunks.ids[0][:, 0], tokenizer([fits, too_long])[0])
    np.testing.assert_array_equal(chunks.ids[0][0], chunks.ids[0][1])
    assert (chunks.weights[0] == 1).all()


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("tokenizer_config.json", {"padding_side": "left"}, "padding_side='left'"),
        ("tokenizer_config.json", {"pad_token": None}, "pad_token is null; a T5 tokenizer"),
        ("tokenizer_config.json", {"extra_ids": -1}, "extra_ids=-1"),
        ("tokenizer.json", {"model": {"type": "BPE"}}, "not a T5 tokenizer: its model is 'BPE'"),
        ("tokenizer.json", {"model": {"type": "Unigram", "vocab": []}}, "vocabulary cannot be"),
        ("tokenizer.json", {"model": {"type": "Unigram", "vocab": [["a"]]}}, "cannot be read"),
        ("tokenizer.json", {"normalizer": {"type": "Precompiled"}}, "cannot be read"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_refused(
    folder: Path, file: str, fields: dict[str, Any], message: str
) -> None:
    _edit(folder, file, **fields)
    with pytest.raises(CheckpointError, match=message):
        _read(folder)


def test_a_tokenizer_that_does_not_fit_its_encoder_is_refused(folder: Path) -> None:
    tokenizer, count = _read(folder), len(pieces())
    with pytest.raises(CheckpointError, match=rf"has id {count - 1}, but .*vocab_size={count - 1}"):
        tokenizer.require_fits("text_encoder_2", vocabulary=count - 1)
    tokenizer.require_fits("text_encoder_2", vocabulary=count)


def test_a_folder_with_the_model_of_sentencepiece_alone_is_refused(folder: Path) -> None:
    (folder / "tokenizer" / "tokenizer.json").rename(folder / "tokenizer" / "spiece.model")
    with pytest.raises(CheckpointError, match=r"does not read spiece\.model alone"):
        _read(folder)
