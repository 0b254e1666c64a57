"""Name the textual inversions of a worker: a token for prompts, and the file of its vectors.

Input: the text of a setting. Output: records. This module reads no files and needs neither numpy
nor JAX.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from imagefleet.worker.engine.options.parse_options import parse_options

_MAX_NAME: Final = 64


@dataclass(frozen=True, kw_only=True)
class TextualInversionOption:
    """It is a file whose vectors are read into the text encoders."""

    name: str
    """This token stands for the vectors in a prompt."""
    path: str

    @classmethod
    def parse(cls, text: str) -> "TextualInversionOption":
        """Parse `token=path`. Raises ValueError on anything else."""
        name, equals, path = text.strip().partition("=")
        if not equals or not name or not path:
            raise ValueError(
                f"{text!r} is no textual inversion; write token=path, as in <cat>=/embeddings/cat"
            )
        if len(name) > _MAX_NAME or not name.isprintable() or " " in name:
            raise ValueError(
                f"the token {name!r} must be 1 to {_MAX_NAME} printable characters without spaces"
            )
        return cls(name=name, path=path)

    @classmethod
    def parse_all(cls, texts: Sequence[str]) -> "tuple[TextualInversionOption, ...]":
        """Parse the setting `textual_inversion`.

        Raises:
            ConfigurationError: one of them is not `token=path`, or two have the same token.
        """
        return parse_options(
            texts, cls.parse, setting="IMAGEFLEET_TEXTUAL_INVERSION", unique="token"
        )


@dataclass(frozen=True, kw_only=True)
class LoadedInversion:
    """It is a textual inversion that is part of the loaded model."""

    name: str
    """This token stands for the inversion in a prompt."""
    digest: str
    """It is `sha256:…` of the inversion's file."""
