"""Write a small tokenizer of Qwen3, and make prompts in many scripts.

Both sides of the comparisons write the same files. This module needs neither torch nor JAX.
"""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL: Final = (END, START, STOP, "<|vision_start|>", "<|image_pad|>")
NOT_SPECIAL: Final = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Qwen3 has tokens that are added and not special."""
_WORDS: Final = (
    *(" red", " circle", " on", " blue", "user", "assistant", " the", " star", "ing", " a"),
    *("ünf", " Bücher", "кра", " синий", "круг", "红色", "圆形", "蓝", "の", "です", "한국", "어"),
    *("अ", "नम", "สวัส", "مرحبا", "שלום", "\n\n", "  ", "!!", "...", "🔴", "👩"),
)
"""The vocabulary has these words and their beginnings."""
CHAT_TEMPLATE: Final = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
"""It does with a user's message what the template of Qwen3 does."""


def byte_letters() -> dict[int, str]:
    """Return the letter of each byte in vocabularies by bytes (Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + index) for index, byte in enumerate(others)}


def vocabulary_and_merges() -> tuple[dict[str, int], list[list[str]]]:
    """Return the vocabulary without added tokens, and the merges."""
    letters = byte_letters()
    merges: dict[tuple[str, str], None] = {}
    for word in _WORDS:
        pieces = [letters[byte] for byte in word.encode()]
        whole = pieces[0]
        for piece in pieces[1:]:
            merges[whole, piece] = None
            whole += piece
    tokens = dict.fromkeys([*letters.values(), *("".join(pair) for pair in merges)])
    return {token: index for index, token in enumerate(tokens)}, [list(pair) for pair in merges]


def write_tokenizer(folder: Path) -> int:
    """Write the files of the tokenizer, and return the size of its vocabulary."""
    vocabulary, merges = vocabulary_and_merges()
    texts = {text: text in SPECIAL for text in (*SPECIAL, *NOT_SPECIAL)}
    write_qwen_files(folder, vocabulary, merges, texts, 131072)
    return len(vocabulary) + len(texts)


def write_qwen_files(
    folder: Path,
    vocabulary: dict[str, int],
    merges: Sequence[Sequence[str]],
    texts: dict[str, bool],
    length: int,
) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` as transformers does.

    Args:
        vocabulary: Ids by tokens.
        merges: Pairs of tokens, the first ones first.
        texts: Tokens that are added to the vocabulary, and whether they are special.
        length: The most tokens of a text.
    """
    added: list[dict[str, Any]] = [
        {
            "id": len(vocabulary) + index,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": special,
        }
        for index, (text, special) in enumerate(texts.items())
    ]
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "unk_token": None}
    file = {"version": "1.0", "added_tokens": added, "model": model, "post_processor": None}
    file |= {"truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None}
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": length,
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


_RANGES: Final = (
    *((0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF)),
    *((0x530, 0x58F), (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x74F), (0x900, 0x97F)),
    *((0x980, 0x9FF), (0xB80, 0xBFF), (0xC00, 0xC7F), (0xE00, 0xE7F), (0xF00, 0xFFF)),
    *((0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF)),
    *((0x1780, 0x17FF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x20CF)),
    *((0x2100, 0x218F), (0x2200, 0x22FF), (0x2500, 0x27BF), (0x3000, 0x303F), (0x3040, 0x30FF)),
    *((0x3130, 0x318F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4CF), (0xAC00, 0xD7A3)),
    *((0xF900, 0xFAFF), (0xFB1D, 0xFDFF), (0xFE70, 0xFEFF), (0xFF00, 0xFFEF), (0x10330, 0x1034A)),
    *((0x12000, 0x1236E), (0x1D400, 0x1D7FF), (0x1F300, 0x1F6FF), (0x1F900, 0x1F9FF)),
    *((0x20000, 0x2A6DF), (0xE000, 0xE0FF), (0x01, 0x1F), (0x7F, 0x9F)),
)
"""These are the code points of blocks of Unicode: scripts, marks, symbols, private and control
characters."""
_PIECES: Final = (
    *_WORDS,
    *SPECIAL,
    *NOT_SPECIAL,
    *("don't", "I'LL", "'S", "’s", "e\u0301", "\u00e9", "\ufb01", "\u1e9b\u0323", "한글"),
    *("\u200d", "\ufe0f", "\u202e", "\u00a0", "\u3000", "\u2028", "\t", "\r\n", "\n", "   ", " "),
    *("1234567890", "３", "Ⅷ", "½", "٣", "a1b2", "<|im_start", "<think", "_", "snake_case", "…"),
    *("🏳️‍🌈", "👩🏽‍🚀", "ﷺ", "İ", "ß", "ŉ", "ﬀ", "Å", "Å", "Ω", "豈"),
)
WRITTEN: Final = (
    *(
        "",
        " ",
        "\n",
        "a red circle on blue",
        "Zwölf  Bücher, 3 for €5!",
        "一只红色的圆形在蓝色背景上",
    ),
    *("赤い円、青い背景です", "파란 배경의 빨간 원", "красный круг на синем фоне", "דגל כחול ולבן"),
    *("دائرة حمراء على خلفية زرقاء", "नीले पृष्ठभूमि पर लाल वृत्त", "วงกลมสีแดงบนพื้นหลังสีน้ำเงิน"),
    *("κόκκινος κύκλος σε μπλε φόντο", "vòng tròn màu đỏ trên nền xanh", "ක්‍රීඩාව", "ಕೆಂಪು ವೃತ್ತ"),
    *("<|im_end|>\n<|im_start|>system\nno", "<|endoftext|>", "<think>\n\n</think>", "{{ 7 * 7 }}"),
    *("word " * 600, "红" * 600, "x" * 2000, "it's WE'VE o'clock", "a\u0301" * 40),
)


def prompts(count: int = 600) -> Iterator[str]:
    """Yield prompts in many scripts: some that are written here, then random ones."""
    yield from WRITTEN
    rng = random.Random(14)
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 12)):
            if rng.random() < 0.4:
                parts.append(rng.choice(_PIECES))
                continue
            low, high = rng.choice(_RANGES)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 9))))
        yield rng.choice(("", " ")).join(parts)
