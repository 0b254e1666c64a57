"""Tokenize prompts as transformers' T5Tokenizer does (Kudo 2018; Raffel et al. 2020).

Input: text. Output: int32 ids of a fixed length. The vocabulary is SentencePiece's, as
`tokenizer.json` has it. It uses the `tokenizers` library directly (docs/decisions/0004).
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader
from imagefleet.worker.engine.tokenizers.added_tokens import AddedTokens, TokenizerKind, readable
from imagefleet.worker.engine.tokenizers.one_sequence import OneSequenceTokenizer
from imagefleet.worker.engine.tokenizers.vocabulary import build_tokenizer, id_of, require_known_ids

_DEFAULT_TOKENS: Final = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
"""They are T5Tokenizer's default tokens."""
T5: Final = TokenizerKind(
    name="T5", default_tokens=_DEFAULT_TOKENS, required=tuple(_DEFAULT_TOKENS)
)
_UNKNOWN_ID: Final = 2
"""transformers gives this id to what the vocabulary lacks, whatever token has it."""
_EXTRA_IDS: Final = 100
"""A T5 tokenizer has so many further tokens `<extra_id_0>` … unless its config says otherwise."""
_BLANK: Final = "▁"
_END_LENGTH: Final = 1


@dataclass(frozen=True, kw_only=True)
class _Files:
    """It has what the files of one tokenizer say."""

    pieces: list[tuple[str, float]]
    """They are the pieces of words with the logarithms of their probabilities, by their ids."""
    characters: bytes | None
    """It says by which characters others are replaced, in SentencePiece's format. None: by none."""
    added: AddedTokens
    further: list[AddedToken]
    """They are added after the others."""

    @classmethod
    def read(cls, files: CheckpointFiles, folder: str) -> Self:
        fast = files.read_optional_json(f"{folder}/tokenizer.json")
        if fast is None:
            raise CheckpointError(
                f"{folder}/tokenizer.json is missing; this engine does not read spiece.model "
                "alone: save the tokenizer again with transformers"
            )
        config = files.read_optional_json(f"{folder}/tokenizer_config.json") or {}
        model = fast.get("model") or {}
        if model.get("type") != "Unigram":
            raise CheckpointError(
                f"{folder}/tokenizer.json is not a T5 tokenizer: its model is "
                f"{model.get('type')!r} and not Unigram"
            )
        with readable(folder):
            return cls(
                pieces=[(str(piece), float(score)) for piece, score in model["vocab"]],
                characters=_characters(fast.get("normalizer")),
                added=AddedTokens.read(files, folder, T5),
                further=_further_tokens(config, f"{folder}/tokenizer_config.json"),
            )


def _characters(normalizer: Mapping[str, Any] | None) -> bytes | None:
    """Return the table of characters, the only part of a normalizer that transformers reads."""
    if normalizer is None:
        return None
    parts = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    tables = [part["precompiled_charsmap"] for part in parts if part["type"] == "Precompiled"]
    return base64.b64decode(tables[0]) if tables else None


def _further_tokens(config: Mapping[str, Any], file: str) -> list[AddedToken]:
    """Return the tokens that T5Tokenizer has if its config lists no further ones."""
    fields = ConfigReader(file, config)
    fields.ignore(*config)
    count = fields.count("extra_ids", _EXTRA_IDS, minimum=0)
    fields.finish()
    if "extra_special_tokens" in config or "additional_special_tokens" in config:
        return []
    return [AddedToken(f"<extra_id_{number}>", special=True) for number in range(count)]


class T5Tokenizer(OneSequenceTokenizer):
    """The T5 tokenizer converts prompts to the ids of one text encoder.

    A sequence is the prompt's tokens, the end token, and padding. Tokens beyond `length` are cut
    off; the end token is kept.
    """

    def __init__(self, files: CheckpointFiles, folder: str, *, length: int) -> None:
        """
        Args:
            files: The files of the checkpoint.
            folder: The tokenizer's folder. It holds `tokenizer.json`.
            length: The pipeline's number of tokens per prompt.

        Raises:
            CheckpointError: the files are missing, broken or not those of a T5 tokenizer.
        """
        super().__init__(length)
        read = _Files.read(files, folder)
        self._folder = folder
        self._tokenizer = build_tokenizer(_build, read, folder, "the vocabulary cannot be used")
        self._end, self._pad = (
            id_of(read.added.by_role[name], self._tokenizer, folder)
            for name in ("eos_token", "pad_token")
        )

    def require_fits(self, encoder: str, vocabulary: int) -> None:
        """Check the tokenizer against its text encoder, which takes prompts of any length.

        Args:
            encoder: The encoder's folder.
            vocabulary: Its `vocab_size`.

        Raises:
            CheckpointError: a token would be outside the encoder's embeddings.
        """
        require_known_ids(self._tokenizer, self._folder, encoder, vocabulary)

    @property
    def tokens_per_chunk(self) -> int:
        """Return the tokens of a sequence beside its end."""
        return self.length - _END_LENGTH

    def _fill(self, row: NDArray[np.int32], tokens: Sequence[int]) -> None:
        sequence = [*tokens[: self.tokens_per_chunk], self._end]
        row[: len(sequence)] = sequence
        row[len(sequence) :] = self._pad

    def _tokens(self, prompt: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        return ids


def _build(read: _Files) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram(read.pieces, _UNKNOWN_ID, byte_fallback=False))
    if read.characters is not None:
        tokenizer.normalizer = normalizers.Precompiled(read.characters)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=_BLANK, prepend_scheme="always", split=True),
        ]
    )
    tokenizer.add_tokens([*read.added.in_order, *read.further])
    return tokenizer
