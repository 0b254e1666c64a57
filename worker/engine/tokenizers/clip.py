"""Tokenize prompts as transformers' CLIPTokenizer does.

Input: text. Output: int32 ids of the model's fixed length. It uses the `tokenizers` library
directly. CLIPTokenizer wraps the same library, but importing transformers takes two seconds.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.jobs.prompt_weights import Piece
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.tokenizers.added_tokens import TokenizerKind, read_max_length
from imagefleet.worker.engine.tokenizers.bpe_files import TokenizerFiles
from imagefleet.worker.engine.tokenizers.vocabulary import build_tokenizer, id_of, require_known_ids

_WORD_PATTERN: Final = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
"""It is the pattern of CLIP's `SimpleTokenizer` (Radford et al. 2021)."""
_END: Final = "<|endoftext|>"
_DEFAULT_TOKENS: Final = {
    "bos_token": "<|startoftext|>",
    "eos_token": _END,
    "unk_token": _END,
    "pad_token": _END,
}
"""They are CLIPTokenizer's default tokens."""
CLIP: Final = TokenizerKind(
    name="CLIP", default_tokens=_DEFAULT_TOKENS, required=tuple(_DEFAULT_TOKENS)
)
_BARE_LENGTH: Final = 2
"""An empty prompt has this many tokens: the start and the end."""


class ClipTokenizer:
    """The CLIP tokenizer converts prompts to the ids of one text encoder.

    A sequence is the start token, the prompt's tokens, the end token, and padding. Tokens beyond
    `length` are cut off; the end token is kept.
    """

    def __init__(self, files: CheckpointFiles, folder: str) -> None:
        """
        Args:
            files: The files of the checkpoint.
            folder: The tokenizer's folder. It holds `tokenizer.json`, or `vocab.json` and
                `merges.txt`.

        Raises:
            CheckpointError: the files are missing, broken or not those of a CLIP tokenizer.
        """
        read = TokenizerFiles.read(files, folder, CLIP)
        self._folder = folder
        self.length: Final = read_max_length(files, folder)
        """It is the number of tokens per prompt, including start and end."""
        self._tokenizer = build_tokenizer(_build, read, folder)
        self._start, self._end, self._pad = (
            id_of(read.added.by_role[name], self._tokenizer, folder)
            for name in ("bos_token", "eos_token", "pad_token")
        )
        self._added = {
            token.content for token in self._tokenizer.get_added_tokens_decoder().values()
        }

    def require_fits(self, encoder: str, positions: int, vocabulary: int) -> None:
        """Check the tokenizer against its text encoder.

        Args:
            encoder: The encoder's folder.
            positions: Its `max_position_embeddings`.
            vocabulary: Its `vocab_size`.

        Raises:
            CheckpointError: a prompt or a token would be outside the encoder's embeddings.
        """
        if not _BARE_LENGTH <= self.length <= positions:
            raise CheckpointError(
                f"{self._folder}/tokenizer_config.json: model_max_length={self.length} must be "
                f"{_BARE_LENGTH} to {positions}, the max_position_embeddings of "
                f"{encoder}/config.json; in published models it is 77"
            )
        advice = " (after a textual inversion, save both)"
        require_known_ids(self._tokenizer, self._folder, encoder, vocabulary, advice)

    def add_vectors(self, token: str, count: int) -> list[int]:
        """Add tokens for the vectors of a textual inversion, as diffusers names them.

        The first vector has the token `token`, the next ones `token_1`, `token_2` ….

        Returns:
            Their ids.

        Raises:
            CheckpointError: One of them, or `token_1`, is in the vocabulary.
        """
        tokens = [token, *(f"{token}_{number}" for number in range(1, count))]
        known = self._tokenizer.get_vocab(with_added_tokens=True)
        if taken := [each for each in (*tokens, f"{token}_1") if each in known]:
            raise CheckpointError(
                f"textual inversion {token}: {self._folder} has the token {taken[0]!r} already; "
                "choose another token for the file"
            )
        self._tokenizer.add_tokens(tokens)
        self._added |= set(tokens)
        return [id_of(each, self._tokenizer, self._folder) for each in tokens]

    def __call__(self, prompts: Sequence[str]) -> NDArray[np.int32]:
        """Return the ids, `[len(prompts), length]`."""
        ids = np.empty((len(prompts), self.length), np.int32)
        for row, prompt in zip(ids, prompts, strict=True):
            self._fill(row, self._tokens(prompt)[: self.tokens_per_chunk])
        return ids

    @property
    def tokens_per_chunk(self) -> int:
        """Return the tokens of a sequence beside its start and its end."""
        return self.length - _BARE_LENGTH

    def weighted_tokens(self, prompt: Sequence[Piece]) -> list[tuple[int, float]]:
        """Return the ids of all tokens of a prompt with their weights."""
        return [(id, piece.weight) for piece in prompt for id in self._tokens(piece.text)]

    def fill_chunks(
        self,
        tokens: Sequence[tuple[int, float]],
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
    ) -> None:
        """Write tokens and their weights into `ids` and `weights`, both `[chunks, length]`."""
        for chunk, row in enumerate(ids):
            first = chunk * self.tokens_per_chunk
            part = tokens[first : first + self.tokens_per_chunk]
            self._fill(row, [id for id, _ in part])
            weights[chunk, 1 : 1 + len(part)] = [weight for _, weight in part]

    def _fill(self, row: NDArray[np.int32], tokens: Sequence[int]) -> None:
        """Write one sequence of at most `tokens_per_chunk` tokens."""
        sequence = [self._start, *tokens, self._end]
        row[: len(sequence)] = sequence
        row[len(sequence) :] = self._pad

    def _tokens(self, prompt: str) -> list[int]:
        ids: list[int] = self._encode(self._with_all_vectors(prompt)).ids
        return ids

    def _with_all_vectors(self, prompt: str) -> str:
        """Write out tokens of textual inversions with several vectors, as diffusers does.

        The first vector of `<cat>` has the token `<cat>`, the next ones `<cat>_1`, `<cat>_2` ….
        """
        for token in sorted(set(self._encode(prompt).tokens) & self._added):
            vectors = [token]
            while (following := f"{token}_{len(vectors)}") in self._added:
                vectors.append(following)
            prompt = prompt.replace(token, " ".join(vectors))
        return prompt

    def _encode(self, prompt: str) -> Any:
        return self._tokenizer.encode(prompt, add_special_tokens=False)


def _build(read: TokenizerFiles) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(
            read.vocabulary,
            read.merges,
            continuing_subword_prefix="",
            end_of_word_suffix="</w>",
            fuse_unk=False,
            unk_token=read.added.by_role["unk_token"],
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORD_PATTERN), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    # An added token matches anywhere in a prompt. Stable Diffusion 2 and SDXL pad with "!", and
    # read a prompt's own exclamation marks as padding, as in transformers.
    tokenizer.add_tokens(read.added.in_order)
    return tokenizer
