"""A byte-level BPE tokenizer in Qwen's files, for a vocabulary of a few dozen words.

Input: the words that must be one token each, alone and after a blank. Output: a folder that
`Qwen2Tokenizer` reads, with the chat template of Qwen3. Any other text can be encoded too, byte by
byte in the worst case.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.parity.flow.qwen_tokenizer import CHAT_TEMPLATE, END, START, STOP, byte_letters
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
    added: list[dict[str, Any]] = [
        {
            "id": len(vocabulary) + index,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, text in enumerate(SPECIAL)
    ]
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "unk_token": None}
    file = {"version": "1.0", "added_tokens": added, "model": model, "post_processor": None}
    file |= {"truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None}
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": LENGTH,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(token["id"]): {name: value for name, value in token.items() if name != "id"}
            for token in added
        },
        "bos_token": None,
        "eos_token": STOP,
        "pad_token": END,
        "unk_token": None,
        "chat_template": CHAT_TEMPLATE,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("tokenizer.json", file), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def as_chat(prompt: str) -> str:
    """Return the prompt as the chat template writes it."""
    return f"{START}user\n{prompt}{STOP}\n{START}assistant\n"
