"""Tokenize prompts for all text encoders of a model.

Input: text, or its pieces with weights. Output: int32 ids for each text encoder. Each kind of
tokenizer has a module of its own, such as `clip.py` and `qwen.py`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.jobs.prompt_weights import Piece


class Tokenizer(Protocol):
    """It converts prompts to the ids of one text encoder."""

    @property
    def length(self) -> int:
        """Return the number of tokens that the encoder gets."""

    @property
    def tokens_per_chunk(self) -> int:
        """Return how many tokens of a prompt are among them."""

    def __call__(self, prompts: Sequence[str]) -> NDArray[np.int32]:
        """Return the ids, `[len(prompts), length]`."""

    def weighted_tokens(self, prompt: Sequence[Piece]) -> Sequence[tuple[int, float]]:
        """Return the ids of all tokens of a prompt with their weights."""

    def fill_chunks(
        self,
        tokens: Sequence[tuple[int, float]],
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
    ) -> None:
        """Write tokens and their weights into `ids` and `weights`, both `[chunks, length]`."""


class PromptChunks(NamedTuple):
    """It has prompts in chunks. Each text encoder has chunks of its own length."""

    ids: tuple[NDArray[np.int32], ...]
    """They are `[prompts, chunks, tokens]`, for each text encoder."""
    weights: tuple[NDArray[np.float32], ...]
    """They are the weights of the tokens, in the shapes of `ids`."""
    used: int
    """This many chunks hold tokens of any of the prompts; at least one."""


class PromptTokenizer:
    """The prompt tokenizer runs the tokenizer of every text encoder of a model."""

    def __init__(self, tokenizers: Sequence[Tokenizer]) -> None:
        """Take the tokenizers of a model, in the order of its text encoders."""
        self.tokenizers: Final = tuple(tokenizers)
        self.lengths: Final = tuple(tokenizer.length for tokenizer in tokenizers)
        """It has the number of tokens of a prompt for each text encoder."""

    def require_equal_lengths(self) -> None:
        """Require that all text encoders get as many tokens.

        Raises:
            CheckpointError: they do not.
        """
        if len(set(self.lengths)) > 1:
            raise CheckpointError(
                f"the tokenizers have model_max_length={sorted(set(self.lengths))} in their "
                "tokenizer_config.json; it must be equal, because the denoiser reads the states of "
                "all text encoders side by side"
            )

    def __call__(self, prompts: Sequence[str]) -> tuple[NDArray[np.int32], ...]:
        """Return the ids of each text encoder, `[len(prompts), tokens]`."""
        return tuple(tokenizer(prompts) for tokenizer in self.tokenizers)

    def chunks(self, prompts: Sequence[Sequence[Piece]], count: int, most: int) -> PromptChunks:
        """Tokenize prompts in `count` chunks, of which `most` may hold tokens.

        Tokens beyond them are cut off. Each chunk is written as a prompt of its own.
        """
        sizes = [(len(prompts), count, length) for length in self.lengths]
        ids = tuple(np.zeros(size, np.int32) for size in sizes)
        weights, used = tuple(np.ones(size, np.float32) for size in sizes), 1
        for tokenizer, rows, row_weights in zip(self.tokenizers, ids, weights, strict=True):
            for row, prompt in enumerate(prompts):
                tokens = tokenizer.weighted_tokens(prompt)[: most * tokenizer.tokens_per_chunk]
                used = max(used, -(-len(tokens) // tokenizer.tokens_per_chunk))
                tokenizer.fill_chunks(tokens, rows[row], row_weights[row])
        return PromptChunks(ids, weights, used)

    def truncated(self, prompt: Sequence[Piece], most: int = 1) -> bool:
        """Return whether any tokenizer cuts off the end of a prompt of at most `most` chunks."""
        return any(
            len(each.weighted_tokens(prompt)) > most * each.tokens_per_chunk
            for each in self.tokenizers
        )
