"""Token ids of chats equal those of transformers' Qwen2Tokenizer and its chat template."""

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
from imagefleet.worker.engine.tokenizers.qwen import QwenTokenizer
from tools.parity.flow.qwen_tokenizer import CHAT_TEMPLATE, WRITTEN, prompts, write_tokenizer

LENGTH = 512


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path / "tokenizer")
    return tmp_path


def _read(folder: Path, *, thinks: bool = True, length: int = LENGTH) -> QwenTokenizer:
    return QwenTokenizer(CheckpointFiles(folder), "tokenizer", length=length, thinks=thinks)


def _edit(folder: Path, name: str, **fields: Any) -> None:
    path = folder / "tokenizer" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _assert_equal(folder: Path, texts: list[str], *, thinks: bool) -> None:
    theirs: Any = transformers.Qwen2Tokenizer.from_pretrained(folder / "tokenizer")
    chats = [
        theirs.apply_chat_template(
            [{"role": "user", "content": text}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinks,
        )
        for text in texts
    ]
    inputs = theirs(chats, padding="max_length", max_length=LENGTH, truncation=True)
    ours = _read(folder, thinks=thinks)(texts)
    assert ours.dtype == np.int32
    np.testing.assert_array_equal(ours >= 0, np.array(inputs["attention_mask"]) == 1)
    np.testing.assert_array_equal(np.where(ours < 0, ~ours, ours), inputs["input_ids"])


@pytest.mark.parametrize("thinks", [True, False])
def test_ids_of_prompts_in_many_scripts_equal_those_of_transformers(
    folder: Path, thinks: bool
) -> None:
    texts = list(prompts())
    assert len(texts) > 600
    _assert_equal(folder, texts, thinks=thinks)


def _use_older_files(folder: Path) -> None:
    whole = json.loads((folder / "tokenizer" / "tokenizer.json").read_text())
    vocabulary, merges = whole["model"]["vocab"], whole["model"]["merges"]
    (folder / "tokenizer" / "vocab.json").write_text(json.dumps(vocabulary))
    lines = "\n".join(" ".join(pair) for pair in merges)
    (folder / "tokenizer" / "merges.txt").write_text(f"#version: 0.2\n{lines}\n")
    (folder / "tokenizer" / "tokenizer.json").unlink()


def _use_template_file(folder: Path) -> None:
    _edit(folder, "tokenizer_config.json", chat_template="{{ messages[0].content }}")
    (folder / "tokenizer" / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _save_again(folder: Path) -> None:
    theirs: Any = transformers.Qwen2Tokenizer.from_pretrained(folder / "tokenizer")
    theirs.save_pretrained(folder / "tokenizer")


@pytest.mark.parametrize("change", [_use_older_files, _use_template_file, _save_again])
def test_files_are_read_with_the_precedence_of_transformers(
    folder: Path, change: Callable[[Path], None]
) -> None:
    change(folder)
    _assert_equal(folder, list(WRITTEN), thinks=True)


def test_a_long_prompt_is_cut_at_its_end_with_the_answer_of_the_chat(folder: Path) -> None:
    tokenizer = PromptTokenizer([_read(folder, length=20)])
    bare = len(tokenizer.tokenizers[0].weighted_tokens([Piece("")]))
    fits, too_long = " red" * (20 - bare), " red" * (21 - bare)
    assert not tokenizer.truncated([Piece(fits)])
    assert tokenizer.truncated([Piece(too_long)])
    chunks = tokenizer.chunks([[Piece(fits)], [Piece(too_long)]], 1, 1)
    np.testing.assert_array_equal(chunks.ids[0][:, 0], tokenizer([fits, too_long])[0])
    assert chunks.ids[0].min() >= 0
    assert (chunks.weights[0] == 1).all()
    assert chunks.ids[0][0, 0, -1] != chunks.ids[0][1, 0, -1]


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("tokenizer_config.json", {"chat_template": None}, "chat_template is missing"),
        ("tokenizer_config.json", {"chat_template": [{"name": "a"}]}, "not one text"),
        (
            "tokenizer_config.json",
            {
                "chat_template": CHAT_TEMPLATE.replace(
                    "message.content +", "message.content | trim +"
                )
            },
            "does not write the message of a user as",
        ),
        (
            "tokenizer_config.json",
            {"chat_template": CHAT_TEMPLATE.replace("is false", "is true")},
            "does not write the beginning of the answer as",
        ),
        (
            "tokenizer_config.json",
            {"chat_template": "{{- '<|im_start|>system\\nYou paint.' }}" + CHAT_TEMPLATE},
            "does not write a chat without a system message as",
        ),
        ("tokenizer_config.json", {"padding_side": "left"}, "padding_side='left'"),
        ("tokenizer_config.json", {"truncation_side": "left"}, "truncation_side='left'"),
        ("tokenizer_config.json", {"add_bos_token": True}, "add_bos_token=True"),
        ("tokenizer_config.json", {"add_prefix_space": True}, "add_prefix_space=True"),
        ("tokenizer_config.json", {"pad_token": None}, "pad_token is null; a Qwen tokenizer"),
        ("tokenizer.json", {"post_processor": {"type": "Template"}}, "post_processor 'Template'"),
        ("tokenizer.json", {"model": {"type": "Unigram"}}, "not a Qwen tokenizer"),
    ],
)
def test_a_tokenizer_that_makes_other_ids_is_refused(
    folder: Path, file: str, fields: dict[str, Any], message: str
) -> None:
    _edit(folder, file, **fields)
    with pytest.raises(CheckpointError, match=message):
        _read(folder)


def test_a_template_is_never_run(folder: Path) -> None:
    """A template could loop for ever, or reach the files of the host."""
    endless = "{% for n in range(100000) %}{% for m in range(100000) %}{% endfor %}{% endfor %}"
    _edit(folder, "tokenizer_config.json", chat_template=endless + CHAT_TEMPLATE)
    assert _read(folder)([""]).shape == (1, LENGTH)


def test_a_tokenizer_that_does_not_fit_its_encoder_is_refused(folder: Path) -> None:
    tokenizer = _read(folder)
    with pytest.raises(CheckpointError, match=r"max_position_embeddings=511, but .* 512 tokens"):
        tokenizer.require_fits("text_encoder", positions=511, vocabulary=10_000)
    with pytest.raises(CheckpointError, match=r"has id 397, but .*vocab_size=397"):
        tokenizer.require_fits("text_encoder", positions=512, vocabulary=397)
    tokenizer.require_fits("text_encoder", positions=512, vocabulary=398)
