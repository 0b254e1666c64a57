"""Read the weights in prompts, in the syntax of AUTOMATIC1111's web UI.

Input: a prompt. Output: its pieces with their weights. This module does not tokenize.

Source of the syntax: https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/Features,
"Attention/emphasis".
"""

import re
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple

from imagefleet.shared.errors import InvalidRequest

MAX_WEIGHT: Final = 10.0
MAX_OPEN_BRACKETS: Final = 25
"""The weight within this many round brackets exceeds the largest weight. The time that a prompt
takes grows with them."""
_ROUND_FACTOR: Final = 1.1
_SQUARE_FACTOR: Final = 1 / 1.1
_PARTS: Final = re.compile(
    r"""\\(?P<escaped>[\\()\[\]])                # a bracket or a backslash as itself
    | (?P<open>[(\[])
    | :\s*(?P<weight>[+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*(?P<weighed>\))
    | (?P<close>[)\]])
    | (?P<text>[^\\()\[\]:]+|[\\:])""",
    re.VERBOSE,
)


class Piece(NamedTuple):
    """A part of a prompt whose tokens have one weight."""

    text: str
    weight: float = 1.0


@lru_cache(maxsize=256)
def pieces_of(prompt: str, *, weighting: bool) -> tuple[Piece, ...]:
    """Return the pieces of a prompt, at least one. Without weighting the prompt is one.

    `(a cat)` multiplies the weight of what it encloses by 1.1, `[a cat]` divides it by 1.1, and
    `(a cat:1.3)` multiplies it by 1.3. Brackets may be nested. One that is never closed reaches to
    the end, one that was never opened is text. `\\(` is a bracket as text.

    Raises:
        ValueError: a weight is outside of -10 to 10, or too many brackets are open.
    """
    if not weighting:
        return (Piece(prompt),)
    parts: list[Piece] = []
    opened: dict[str, list[int]] = {"(": [], "[": []}
    for match in _PARTS.finditer(prompt):
        opening = "[" if match["close"] == "]" else "("
        if match["open"]:
            opened[match["open"]].append(len(parts))
            if sum(map(len, opened.values())) > MAX_OPEN_BRACKETS:
                raise ValueError(f"opens more than {MAX_OPEN_BRACKETS} brackets within each other")
        elif match["weighed"] and opened["("]:
            _multiply(parts, opened["("].pop(), float(match["weight"]))
        elif match["close"] and opened[opening]:
            _multiply(parts, opened[opening].pop(), _factor(opening))
        else:
            parts.append(Piece(match["escaped"] or match[0]))
    for opening, starts in opened.items():
        for start in starts:
            _multiply(parts, start, _factor(opening))
    equals = (list(equal) for _, equal in groupby(parts, lambda part: part.weight))
    return tuple(map(_join, equals)) or (Piece(""),)


def check_weights(field: str, prompt: str, *, weighting: bool) -> None:
    """Raise InvalidRequest if `field` of a request holds weights that cannot be read."""
    try:
        pieces_of(prompt, weighting=weighting)
    except ValueError as error:
        raise InvalidRequest(field, prompt, str(error)) from None


def _factor(opening: str) -> float:
    return _ROUND_FACTOR if opening == "(" else _SQUARE_FACTOR


def _multiply(parts: list[Piece], start: int, factor: float) -> None:
    parts[start:] = [Piece(text, weight * factor) for text, weight in parts[start:]]


def _join(parts: list[Piece]) -> Piece:
    """Join neighbours of one weight, so that they are tokenized as one text."""
    piece = Piece("".join(part.text for part in parts), parts[0].weight)
    if not -MAX_WEIGHT <= piece.weight <= MAX_WEIGHT:
        raise ValueError(
            f"gives {piece.text[:40]!r} the weight {piece.weight:g}; weights must be from "
            f"{-MAX_WEIGHT:g} to {MAX_WEIGHT:g}"
        )
    return piece
