"""Prompts become the ids that transformers' CLIPTokenizer makes of them."""

from pathlib import Path

import numpy as np
import pytest

from shared.errors import CheckpointError
from tests.unit.engine.parity import FOLDER, PROMPTS, Oracle
from worker.engine.tokenizer import ClipTokenizer


def test_ids_are_those_of_transformers(oracle: Oracle) -> None:
    tokenizer = ClipTokenizer(oracle.folder / "tokenizer", 77)
    ids = tokenizer(PROMPTS)
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, oracle.answers["tokens"])


def test_a_long_prompt_is_cut_and_keeps_its_end() -> None:
    tokenizer = ClipTokenizer(FOLDER / "older" / "tokenizer", 77)
    fits, too_long = " ".join(["red"] * 75), " ".join(["red"] * 76)
    assert not tokenizer.truncated(fits)
    assert tokenizer.truncated(too_long)
    np.testing.assert_array_equal(tokenizer([fits]), tokenizer([too_long]))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        ClipTokenizer(tmp_path, 77)


def test_another_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    with pytest.raises(CheckpointError, match="not BPE"):
        ClipTokenizer(tmp_path, 77)
