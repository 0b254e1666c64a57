"""Tokenize prompts as transformers' Qwen2Tokenizer does, which Qwen3 has, too.

Input: text. Output: int32 ids of a fixed length. The prompt is written as a chat first. It uses the
`tokenizers` library directly (docs/decisions/0004).
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader
from imagefleet.worker.engine.tokenizers.added_tokens import TokenizerKind
from imagefleet.worker.engine.tokenizers.bpe_files import TokenizerFiles
from imagefleet.worker.engine.tokenizers.chat_format import read_chat_format
from imagefleet.worker.engine.tokenizers.one_sequence import OneSequenceTokenizer
from imagefleet.worker.engine.tokenizers.vocabulary import build_tokenizer, require_known_ids

_END: Final = "<|endoftext|>"
QWEN: Final = TokenizerKind(
    name="Qwen",
    default_tokens={"eos_token": _END, "unk_token": _END, "pad_token": _END},
    required=("pad_token",),
)
_TEXT_ALONE: Final = [{"Sequence": {"id": "A", "type_id": 0}}]
_WORD_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""It is the pattern of Qwen's tokenizer (Bai et al. 2023)."""


class QwenTokenizer(OneSequenceTokenizer):
    """The Qwen tokenizer converts prompts to the ids of one text encoder.

    A sequence is the tokens of the chat and padding. Tokens beyond `length` are cut off. A token
    that pads has the complement of its id, since the same token may also be in a prompt.
    """

    def __init__(self, files: CheckpointFiles, folder: str, *, length: int, thinks: bool) -> None:
        """
        Args:
            files: The files of the checkpoint.
            folder: The tokenizer's folder. It holds `tokenizer.json`, or `vocab.json` and
                `merges.txt`.
            length: The pipeline's number of tokens per prompt.
            thinks: See `read_chat_format`.

        Raises:
            CheckpointError: the files are missing, broken or not those of a Qwen tokenizer.
        """
        super().__init__(length)
        read = TokenizerFiles.read(files, folder, QWEN)
        config = files.read_optional_json(f"{folder}/tokenizer_config.json") or {}
        _require_no_further_tokens(files, folder, config)
        self._folder = folder
        self._chat = read_chat_format(files, folder, config, thinks=thinks)
        self._tokenizer = build_tokenizer(_build, read, folder)
        pad = self._tokenizer.token_to_id(read.added.by_role["pad_token"])
        if pad is None:
            raise CheckpointError(f"{folder}: the vocabulary has no token for padding")
        self._padding = ~int(pad)

    def require_fits(self, encoder: str, positions: int, vocabulary: int) -> None:
        """Check the tokenizer against its text encoder.

        Args:
            encoder: The encoder's folder.
            positions: Its `max_position_embeddings`.
            vocabulary: Its `vocab_size`.

        Raises:
            CheckpointError: a prompt or a token would be outside the encoder's embeddings.
        """
        if self.length > positions:
            raise CheckpointError(
                f"{encoder}/config.json: max_position_embeddings={positions}, but the pipeline "
                f"gives the encoder {self.length} tokens"
            )
        require_known_ids(self._tokenizer, self._folder, encoder, vocabulary)

    @property
    def tokens_per_chunk(self) -> int:
        """Return the tokens of a sequence."""
        return self.length

    def _fill(self, row: NDArray[np.int32], tokens: Sequence[int]) -> None:
        kept = tokens[: self.length]
        row[: len(kept)] = kept
        row[len(kept) :] = self._padding

    def _tokens(self, prompt: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(self._chat.wrap(prompt)).ids
        return ids


def _require_no_further_tokens(files: CheckpointFiles, folder: str, config: dict[str, Any]) -> None:
    """Raise CheckpointError if transformers would add tokens or blanks to each text."""
    fields = ConfigReader(f"{folder}/tokenizer_config.json", config)
    fields.ignore(*config)
    for name in ("add_prefix_space", "add_bos_token", "add_eos_token"):
        fields.choice(name, False, (False, None))
    fields.finish()
    fast = files.read_optional_json(f"{folder}/tokenizer.json") or {}
    processor = fast.get("post_processor") or {"type": "ByteLevel"}
    # transformers 5 saves a template of the text alone in place of `ByteLevel`.
    if processor.get("type") != "ByteLevel" and processor.get("single") != _TEXT_ALONE:
        raise CheckpointError(
            f"{folder}/tokenizer.json: the post_processor {processor.get('type')!r} must be "
            "'ByteLevel', since the tokenizer of Qwen adds no tokens to a text"
        )


def _build(read: TokenizerFiles) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(
            read.vocabulary,
            read.merges,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
        )
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_tokens(read.added.in_order)
    return tokenizer
