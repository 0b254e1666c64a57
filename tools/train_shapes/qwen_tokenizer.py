"""A byte-level BPE tokenizer in Qwen's files, for a vocabulary of a few dozen words.

Input: the words that must be one token each, alone and after a blank. Output: a folder that
`Qwen2Tokenizer` reads, with the chat template of Qwen3. Any other text can be encoded too, byte by
byte in the worst case.
"""

from __future__ import annotations

from pathlib import Path

from tools.parity.flow.qwen_tokenizer import END, START, STOP, byte_letters, write_qwen_files
from tools.train_shapes.tokenizer import merge_pieces

SPECIAL = (END, START, STOP)
ROLES = ("user", "assistant")
LENGTH = 512
"""Tokens of a prompt in Z-Image, including those of the chat."""


def write_qwen_tokenizer(folder: Path, words: list[str]) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    letters = byte_letters()
    spelled = [letters[ord(" ")] + word for word in words if word.isalpha()]
    spelled += [word for word in words if word.isalpha()]
    merges = merge_pieces({word: list(word) for word in (*spelled, *ROLES)})
    tokens = dict.fromkeys([*letters.values(), *("".join(merge) for merge in merges)])
    vocabulary = {token: index for index, token in enumerate(tokens)}
    write_qwen_files(folder, vocabulary, merges, dict.fromkeys(SPECIAL, True), LENGTH)


def as_chat(prompt: str) -> str:
    """Return the prompt as the chat template writes it."""
    return f"{START}user\n{prompt}{STOP}\n{START}assistant\n"
