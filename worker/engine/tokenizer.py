"""Tokenize prompts as transformers' CLIPTokenizer does.

Goes in: text. Comes out: int32 ids of the model's fixed length. It uses the `tokenizers` library
directly. CLIPTokenizer wraps the same library, but importing transformers takes two seconds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.tensor_files import read_json

_START: Final = "<|startoftext|>"
_END: Final = "<|endoftext|>"
_WORD_PATTERN: Final = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
"""The pattern of CLIP's `SimpleTokenizer` (Radford et al. 2021)."""


class PromptTokenizer:
    """The prompt tokenizer runs the tokenizer of every text encoder of a model."""

    def __init__(self, tokenizers: Sequence["ClipTokenizer"]) -> None:
        """Take tokenizers of one length."""
        self._tokenizers = tokenizers
        self.shape = (len(tokenizers), tokenizers[0].length)
        """The number of encoders, and of tokens per prompt."""

    def __call__(self, prompts: Sequence[str]) -> NDArray[np.int32]:
        """Return the ids, `[len(prompts), *shape]`."""
        return np.stack([tokenizer(prompts) for tokenizer in self._tokenizers], axis=1)

    def truncated(self, prompt: str) -> bool:
        """Return whether any tokenizer cuts off the end of this prompt."""
        return any(tokenizer.truncated(prompt) for tokenizer in self._tokenizers)


class ClipTokenizer:
    """The CLIP tokenizer converts prompts to the ids of one text encoder.

    A sequence is the start token, the words, the end token, and padding. Words beyond `length` are
    cut off; the end token is kept.
    """

    def __init__(self, folder: Path, length: int) -> None:
        """
        Args:
            folder: It holds `vocab.json` and `merges.txt`, or `tokenizer.json`.
            length: Tokens per prompt, including start and end.

        Raises:
            CheckpointError: the files are missing or broken.
        """
        self.length = length
        pad = _pad_token(folder)
        self._tokenizer = _read(folder, {_START, _END, pad})
        self._start, self._end, self._pad = self._id(_START), self._id(_END), self._id(pad)

    def __call__(self, prompts: Sequence[str]) -> NDArray[np.int32]:
        """Return the ids, `[len(prompts), length]`."""
        ids = np.full((len(prompts), self.length), self._pad, np.int32)
        for row, prompt in zip(ids, prompts, strict=True):
            words = self._words(prompt)[: self.length - 2]
            tokens = [self._start, *words, self._end]
            row[: len(tokens)] = tokens
        return ids

    def truncated(self, prompt: str) -> bool:
        """Return whether the end of this prompt is cut off."""
        return len(self._words(prompt)) > self.length - 2

    def _words(self, prompt: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        return ids

    def _id(self, token: str) -> int:
        number: int | None = self._tokenizer.token_to_id(token)
        if number is None:
            raise CheckpointError(
                f"the vocabulary of this checkpoint's tokenizer has no token {token!r}"
            )
        return number


def _read(folder: Path, special: set[str]) -> Tokenizer:
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if vocabulary.is_file() and merges.is_file():
        words = models.BPE.read_file(str(vocabulary), str(merges))
    else:
        words = _from_fast_file(folder / "tokenizer.json")
    tokenizer = Tokenizer(
        models.BPE(
            *words,
            continuing_subword_prefix="",
            end_of_word_suffix="</w>",
            fuse_unk=False,
            unk_token=_END,
        )
    )
    # A special token matches anywhere in a prompt. Stable Diffusion 2 and SDXL pad with "!", and
    # read a prompt's own exclamation marks as padding, as in transformers.
    tokenizer.add_special_tokens(sorted(special))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORD_PATTERN), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


def _from_fast_file(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model: dict[str, Any] = read_json(path).get("model", {})
    if model.get("type") != "BPE":
        raise CheckpointError(f"{path} is not a CLIP tokenizer: its model is not BPE")
    # Older files write a merge as "a b", newer ones as ["a", "b"].
    pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
    return model["vocab"], [(left, right) for left, right in pairs]


def _pad_token(folder: Path) -> str:
    """Return the padding token that transformers would use.

    The older special_tokens_map.json takes precedence over a config without `added_tokens_decoder`,
    which is as old.
    """
    config, token_map = (
        read_json(path) if (path := folder / name).is_file() else {}
        for name in ("tokenizer_config.json", "special_tokens_map.json")
    )
    token = config.get("pad_token", _END)
    if "added_tokens_decoder" not in config:
        token = token_map.get("pad_token", token)
    return str(token["content"] if isinstance(token, dict) else token)
