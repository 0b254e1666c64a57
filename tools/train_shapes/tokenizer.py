"""A byte-level BPE tokenizer in CLIP's file format, for a vocabulary of a few dozen words.

Input: the words that must be one token each. Output: a folder with vocab.json, merges.txt and
tokenizer.json, which `CLIPTokenizer` reads. Any other text can be encoded too, byte by byte in the
worst case.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

from transformers import CLIPTokenizer

START = "<|startoftext|>"
END = "<|endoftext|>"
WORD_END = "</w>"
LENGTH = 77
"""Tokens of a prompt, including start and end, as in Stable Diffusion."""

Merge = tuple[str, str]


def byte_letters() -> list[str]:
    """Return the printable letter for each byte (GPT-2's table), in CLIP's order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(hidden))]


def learn_merges(words: list[str]) -> list[Merge]:
    """Return the merges that make every word one token, with the mark of its end."""
    return merge_pieces({word: [*word[:-1], word[-1] + WORD_END] for word in words})


def merge_pieces(splits: dict[str, list[str]]) -> list[Merge]:
    """Return the merges, most frequent pair first, that join the pieces of every word."""
    splits = dict(splits)
    merges: list[Merge] = []
    while any(len(pieces) > 1 for pieces in splits.values()):
        pairs = Counter(pair for pieces in splits.values() for pair in itertools.pairwise(pieces))
        # Equal counts are ordered alphabetically, so that every machine writes the same files.
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        splits = {word: _merge(pieces, best) for word, pieces in splits.items()}
    return merges


def write_tokenizer(folder: Path, words: list[str]) -> None:
    """Write the files of the slow tokenizer (vocab, merges) and of the fast one (tokenizer.json).

    Raises:
        ValueError: two merges give the same token.
    """
    folder.mkdir(parents=True, exist_ok=True)
    letters = byte_letters()
    merges: Any = learn_merges(words)  # transformers declares strings, and takes pairs
    tokens = [*letters, *(letter + WORD_END for letter in letters)]
    tokens += ["".join(merge) for merge in merges]
    tokens += [START, END]
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ValueError("two merges give the same token; remove one of the words")
    tokenizer = CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=LENGTH)
    tokenizer.save_pretrained(folder)
    (folder / "vocab.json").write_text(
        json.dumps(vocab, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    special = {"bos_token": START, "eos_token": END, "pad_token": END, "unk_token": END}
    (folder / "special_tokens_map.json").write_text(
        json.dumps(special, indent=2) + "\n", encoding="utf-8"
    )


def _merge(pieces: list[str], pair: Merge) -> list[str]:
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged
