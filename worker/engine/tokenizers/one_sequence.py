"""Tokenize a prompt into one sequence, as text encoders that take long texts need.

Input: text, or its pieces. Output: int32 ids of a fixed length. What is longer is cut off.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.jobs.prompt_weights import Piece


class OneSequenceTokenizer(ABC):
    """It converts a prompt to one chunk of ids. Weights of words have no effect."""

    def __init__(self, length: int) -> None:
        self.length: Final = length
        """It is the number of tokens per prompt, with those that are added to it."""

    @abstractmethod
    def _tokens(self, prompt: str) -> list[int]:
        """Return the ids of all tokens of a prompt."""

    @abstractmethod
    def _fill(self, row: NDArray[np.int32], tokens: Sequence[int]) -> None:
        """Write the tokens that are kept into `row`, `[length]`, and what stands behind them."""

    def __call__(self, prompts: Sequence[str]) -> NDArray[np.int32]:
        """Return the ids, `[len(prompts), length]`."""
        ids = np.empty((len(prompts), self.length), np.int32)
        for row, prompt in zip(ids, prompts, strict=True):
            self._fill(row, self._tokens(prompt))
        return ids

    def weighted_tokens(self, prompt: Sequence[Piece]) -> list[tuple[int, float]]:
        """Return the ids of all tokens of a prompt. Each has the weight 1."""
        return [(id, 1.0) for id in self._tokens("".join(piece.text for piece in prompt))]

    def fill_chunks(
        self,
        tokens: Sequence[tuple[int, float]],
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
    ) -> None:
        """Write tokens and their weights into `ids` and `weights`, both `[1, length]`."""
        self._fill(ids[0], [id for id, _ in tokens])
        weights[0] = 1
