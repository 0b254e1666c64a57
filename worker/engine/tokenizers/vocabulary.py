"""Build the tokenizers of the `tokenizers` library, and hold their vocabularies to text encoders.

It has what all kinds of tokenizers have in common (docs/decisions/0004).
"""

from collections.abc import Callable
from typing import TypeVar

from tokenizers import Tokenizer

from imagefleet.shared.errors import CheckpointError

Read = TypeVar("Read")
BYTE_PAIRS = "the vocabulary and the merges do not fit"
"""It is what an error says of the files of a tokenizer by byte pairs."""


def build_tokenizer(
    build: Callable[[Read], Tokenizer], read: Read, folder: str, what: str = BYTE_PAIRS
) -> Tokenizer:
    """Return what `build` makes of the files in a folder.

    Args:
        build: It raises any error if it cannot.
        read: What the files say.
        folder: Of the tokenizer.
        what: What the error says of the files.

    Raises:
        CheckpointError: `build` cannot.
    """
    try:
        return build(read)
    except Exception as error:  # the library raises plain Exceptions
        raise CheckpointError(
            f"{folder}: {what} ({error}); save the tokenizer again with transformers"
        ) from error


def id_of(token: str, tokenizer: Tokenizer, folder: str) -> int:
    """Return the id of a token of the tokenizer that was read from `folder`.

    Raises:
        CheckpointError: the vocabulary has no such token.
    """
    number: int | None = tokenizer.token_to_id(token)
    if number is None:
        raise CheckpointError(f"{folder}: the vocabulary has no token {token!r}")
    return number


def require_known_ids(
    tokenizer: Tokenizer, folder: str, encoder: str, vocabulary: int, advice: str = ""
) -> None:
    """Check that the text encoder knows all tokens.

    Args:
        tokenizer: It was read from `folder`.
        folder: The tokenizer's folder.
        encoder: The encoder's folder.
        vocabulary: Its `vocab_size`.
        advice: It stands at the end of the error.

    Raises:
        CheckpointError: a token would be outside the encoder's embeddings.
    """
    ids = tokenizer.get_vocab(with_added_tokens=True)
    token = max(ids, key=lambda each: ids[each])
    if ids[token] >= vocabulary:
        raise CheckpointError(
            f"{folder}: token {token!r} has id {ids[token]}, but {encoder}/config.json has "
            f"vocab_size={vocabulary}, so ids end at {vocabulary - 1}; take tokenizer and text "
            f"encoder from one model{advice}"
        )
