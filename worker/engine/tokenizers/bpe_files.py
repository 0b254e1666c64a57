"""Read the files of a tokenizer by byte pairs with the precedence of transformers 5.

Input: the tokenizer's folder in a checkpoint, and its kind: CLIP or Qwen. Output: its vocabulary,
its merges and the tokens that are added to them. This module builds no tokenizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tokenizers import models

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.tokenizers.added_tokens import (
    AddedTokens,
    TokenizerKind,
    readable,
)


@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """It has what the files of one tokenizer say."""

    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]
    added: AddedTokens

    @classmethod
    def read(cls, files: CheckpointFiles, folder: str, kind: TokenizerKind) -> Self:
        """Read the tokenizer in `folder`.

        Raises:
            CheckpointError: A file is missing, broken or unsupported.
        """
        fast = files.read_optional_json(f"{folder}/tokenizer.json")
        with readable(folder):
            vocabulary, merges = _bpe(files, folder, fast, kind)
            added = AddedTokens.read(files, folder, kind)
        return cls(vocabulary=vocabulary, merges=merges, added=added)


def _bpe(
    files: CheckpointFiles, folder: str, fast: Mapping[str, Any] | None, kind: TokenizerKind
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary and the merges; `tokenizer.json` has precedence."""
    if fast is None:
        vocabulary, merges = (
            files.use(f"{folder}/{name}") for name in ("vocab.json", "merges.txt")
        )
        try:
            return models.BPE.read_file(str(vocabulary), str(merges))
        except Exception as error:  # the library raises plain Exceptions
            raise ValueError(f"{vocabulary.name} or {merges.name}: {error}") from error
    model = fast.get("model", {})
    if model.get("type") != "BPE":
        raise CheckpointError(
            f"{folder}/tokenizer.json is not a {kind.name} tokenizer: its model is "
            f"{model.get('type')!r} and not BPE"
        )
    # Older files write a merge as "a b", newer ones as ["a", "b"].
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    return dict(model["vocab"]), [(left, right) for left, right in pairs]
