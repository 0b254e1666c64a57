"""Write a small tokenizer of T5, and make prompts in many scripts.

Both sides of the comparisons write the same files. This module needs neither torch nor JAX.
"""

import base64
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tools.parity.flow import qwen_tokenizer

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
EXTRA_IDS: Final = 100
_BLANK: Final = "▁"
_WORDS: Final = (
    *("red", "circle", "on", "blue", "the", "star", "a", "house", "three", "with", "s", "ing"),
    *("Bücher", "синий", "круг", "红色", "圆形", "蓝", "の", "です", "한국", "어", "नम", "สวัส"),
    *("مرحبا", "שלום", "fi", "3", "VIII", "...", "!", "!!", "'", "don", "t"),
)
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;()<>_ü红色кра"
CHARACTERS: Final = zlib.decompress(
    base64.b64decode(
        "eNod03dsTWEcxvHnnFakohGJPzQhRCJBuNpasfe4qFm1R42rJWbsee91S4tStFaNqg7V2q1RatVO1aa19RIkRu3avsdJ"
        "Pnne97y/95yT9z2vfCXVlPz8pArlJENyFlQ05R8guejXop/UQCpPOgNNxVaXdTl94Ck1FVVmKpm6yvRrowbSmJs3TUrn"
        "fhVrHs/LrCu5s005w6XMaB95fU25I0wlfpfScqSG1GVVNRVg1fMOl79UjXZua6kOSddZCfV4OZ+j+tjFPBsZhECc8Pgo"
        "mGyCxmiGpmiOI3GmWpItwCPVCm3RButSDbUjO6IDOqMTuqIL7OiGHuiOEPREb/RCX/RBf/TDAIRiIMIwGIMwFEMwHMMw"
        "EiPAkmgUxmA0xmEsxsOBSERgIiZgklUTb2oKORkstaZiR7ih6eRMzMBszMJczMF8zMNCLMBiLILL2lAsgRtR8GAZliIG"
        "0ViB5YjFSqzGKqxBnLWOWIsExGMD1mMTNiIRm7EVW7Ad26zvRhJ2IhmpSEE60pBh7TUysRt7kIV92IsD2I9DOAh+C2Vb"
        "e47DOIajOI5c5Fn/Ck7hJM7gNPJxFudxDhdxAZdxyRqLNnSFvIoCXEMhbuA6buEm7uA27uEuilGEB7iPR3iIJ3iMZ3gK"
        "L0rwAs/xEu9TDL0mX1ljTkPeAkNvab+xxvAOH1CKT/iIL/iMb/gKjpjK8BM/8Bu/8Bd/9P/822w2BZW4PMFqpPYKDVGY"
        "3W6XwyFHpPKjlJ+hwgwV5RR7imPkdWfpH9zQtGw="
    )
)
"""SentencePiece's trainer made this table of characters from twenty rules, such as that a ligature
becomes two letters."""


def pieces() -> list[tuple[str, float]]:
    """Return the pieces of words with the logarithms of their probabilities."""
    words = [blank + word for word in _WORDS for blank in (_BLANK, "")]
    listed = dict.fromkeys([*words, *_LETTERS])
    scored = [(each, -2 - zlib.crc32(each.encode()) % 1000 / 100) for each in listed]
    extra = [(f"<extra_id_{number}>", 0.0) for number in reversed(range(EXTRA_IDS))]
    return [(PAD, 0.0), (END, 0.0), (UNKNOWN, 0.0), (_BLANK, -2.5), *scored, *extra]


def write_tokenizer(folder: Path) -> int:
    """Write the files of the tokenizer, and return the size of its vocabulary."""
    vocabulary = pieces()
    special = [PAD, END, UNKNOWN, *(f"<extra_id_{number}>" for number in range(EXTRA_IDS))]
    ids = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": ids[text], "content": text, **options, "special": True} for text in special]
    file: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {
            "type": "Precompiled",
            "precompiled_charsmap": base64.b64encode(CHARACTERS).decode(),
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": vocabulary, "byte_fallback": False},
    }
    config = {
        "tokenizer_class": "T5Tokenizer",
        "added_tokens_decoder": {
            str(token["id"]): {name: value for name, value in token.items() if name != "id"}
            for token in added
        },
        "additional_special_tokens": special[3:],
        "clean_up_tokenization_spaces": True,
        "eos_token": END,
        "extra_ids": EXTRA_IDS,
        "legacy": True,
        "model_max_length": 512,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("tokenizer.json", file), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return len(vocabulary)


WRITTEN: Final = (
    *qwen_tokenizer.WRITTEN,
    *("</s>", "a red</s> circle", "<pad> a", "<unk>", "red<extra_id_0> circle <extra_id_99>."),
    *(
        "<extra_id_100>",
        "▁red",
        "_",
        "ﬁre ﬀ Ⅷ ½ ＡＢ３…",
        "e\u0301 \u212b \u2126",
        "a\u00a0\u3000b",
    ),
)


def prompts(count: int = 600) -> Iterator[str]:
    """Yield prompts in many scripts: some that are written here, then random ones."""
    yield from WRITTEN
    yield from qwen_tokenizer.prompts(count)
