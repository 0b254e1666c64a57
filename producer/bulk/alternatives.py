"""Expand prompts with alternatives and wildcards: `a {red|blue|3::green} car on a __place__`.

Input: a row. Output: the rows of all combinations, or the one that the seed of the row draws. This
module knows no parameter but the prompts and the seed.

Source of the syntax: https://github.com/adieyal/sd-dynamic-prompts, docs/SYNTAX.md.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

from imagefleet.producer.bulk.row_cells import converted
from imagefleet.producer.bulk.rows import RejectedRow, Row, shown_value
from imagefleet.producer.bulk.text_files import FileOptions, open_lines, without_mark
from imagefleet.shared.bulk.plan import derive_seed
from imagefleet.shared.errors import InvalidRequest

MAX_COMBINATIONS: Final = 100_000
"""A row with more is rejected."""
_MAX_DEPTH: Final = 50
_MAX_SEARCHED: Final = 4_000
"""Characters of a prompt in which alternatives are looked for to warn of them."""
_WILDCARD: Final = r"__(?P<wildcard>[^\s_|{}](?:[^|{}\n]{0,200}?[^\s_|{}])?)__"
_PARTS: Final = re.compile(rf"(?P<open>\{{)|(?P<bar>\|)|(?P<close>\}})|{_WILDCARD}")
_WEIGHT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)::")
_MET: Final = re.compile(rf"\{{[^{{}}]*\|[^{{}}]*\}}|{_WILDCARD}")
_SEVERAL: Final = re.compile(r"\s*[\d-]+\$\$")


class Mode(StrEnum):
    """Which of the alternatives a row becomes."""

    COMBINATORIAL = "combinatorial"
    RANDOM = "random"


@dataclass(frozen=True)
class _Choice:
    """Parts of which one stands in the prompt, with weights for drawing it."""

    parts: tuple["_Text", ...]
    weights: tuple[float, ...]


_Text = tuple["str | _Choice", ...]
"""Texts and choices that follow each other."""


class _WrongTemplate(Exception):
    """Ends the reading of a prompt."""


class _Parser:
    """Parses prompts, and the lines of wildcards once each."""

    def __init__(self, wildcards: Path | None) -> None:
        self._folder = wildcards
        self._parsed: dict[str, _Choice] = {}
        self._within: list[str] = []
        """Wildcards whose lines are parsed now."""

    def parse(self, text: str) -> _Text:
        """Return the parts of a prompt.

        Raises:
            _WrongTemplate: a brace is never closed, or a wildcard is unknown.
        """
        opened: list[list[list[str | _Choice]]] = [[[]]]
        at = 0
        for match in _PARTS.finditer(text):
            opened[-1][-1].append(text[at : match.start()])
            at = match.end()
            if match["wildcard"]:
                opened[-1][-1].append(self._wildcard(match[0], match["wildcard"]))
            elif match["open"]:
                opened.append([[]])
                if len(opened) > _MAX_DEPTH:
                    raise _WrongTemplate(f"has more than {_MAX_DEPTH} braces within each other")
            elif len(opened) == 1:  # no brace is open, so this is text
                opened[-1][-1].append(match[0])
            elif match["bar"]:
                opened[-1].append([])
            else:
                parts = opened.pop()
                opened[-1][-1] += _choice(parts)
        if len(opened) > 1:
            raise _WrongTemplate("has a { that is never closed")
        return _text([*opened[0][0], text[at:]])

    def _wildcard(self, text: str, name: str) -> "str | _Choice":
        if self._folder is None:
            return text
        if name in self._within:
            raise _WrongTemplate(f"names {text}, whose lines name it again")
        if name not in self._parsed:
            self._within.append(name)
            try:
                parts = tuple(map(self.parse, _lines_of(self._folder, name)))
            finally:
                self._within.pop()
            self._parsed[name] = _Choice(parts, (1.0,) * len(parts))
        return self._parsed[name]


def _lines_of(folder: Path, name: str) -> list[str]:
    """Return the lines of a wildcard without blank ones and comments."""
    path = folder / f"{name}.txt"
    if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
        raise _WrongTemplate(f"names __{name}__, and {folder} holds no {name}.txt")
    with open_lines(path, FileOptions()) as lines:
        texts = [without_mark(line).strip() for line in lines]
    found = [text for text in texts if text and not text.startswith("#")]
    if not found:
        raise _WrongTemplate(f"names __{name}__, and {path} holds no line")
    return found


def _text(parts: Sequence["str | _Choice"]) -> _Text:
    return tuple(part for part in parts if part != "")


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """How the prompts of a run are expanded."""

    mode: Mode | None
    """None: not at all, and `find` says whether there was something to expand."""
    wildcards: Path | None = None
    """The folder holds the lines of `__place__` in `place.txt`."""
    _parser: _Parser = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise InvalidRequest if the folder of wildcards is none."""
        if self.wildcards is not None and not self.wildcards.is_dir():
            raise InvalidRequest("wildcards", str(self.wildcards), "must be a folder of .txt files")
        object.__setattr__(self, "_parser", _Parser(self.wildcards))

    def rows_of(
        self, row: Row, number: int, *, run_seed: int, columns: Mapping[str, str]
    ) -> Iterator[Row]:
        """Yield the rows that a row becomes.

        Args:
            number: that of the row, from which its seed follows if it has none.
            columns: parameter to the column that holds it, where the names differ.
        """
        names = [columns.get(name, name) for name in ("prompt", "negative_prompt")]
        texts = {names[0]: row} if isinstance(row, str) else _texts(row, names)
        if self.mode is None or not any(_has_marks(text) for text in texts.values()):
            yield row
            return
        try:
            parsed = {name: self._parser.parse(text) for name, text in texts.items()}
            if self.mode is Mode.RANDOM:
                draws = _Draws(_seed_of(row, number, run_seed, columns))
                expanded = iter([tuple(_drawn(text, draws) for text in parsed.values())])
            else:
                expanded = _combinations(list(parsed.values()))
        except (_WrongTemplate, InvalidRequest) as error:
            text = texts.get(names[0], "")
            reason = error.limit if isinstance(error, InvalidRequest) else str(error)
            yield RejectedRow(names[0], shown_value(text), reason)
            return
        for each in expanded:
            new = dict(zip(parsed, each, strict=True))
            yield new[names[0]] if isinstance(row, str) else {**_mapping(row), **new}


NO_ALTERNATIVES: Final = Alternatives(mode=None)


def find(row: Row | None, columns: Mapping[str, str]) -> str | None:
    """Return the first text in the prompts of a row that `Alternatives` would expand."""
    if isinstance(row, str):
        return _found(row)
    if row is None or isinstance(row, RejectedRow):
        return None
    names = [columns.get(name, name) for name in ("prompt", "negative_prompt")]
    return next(filter(None, map(_found, _texts(row, names).values())), None)


def _found(text: str) -> str | None:
    match = _MET.search(text[:_MAX_SEARCHED]) if _has_marks(text) else None
    return match and match[0]


def _has_marks(text: str) -> bool:
    return "{" in text or "__" in text


def _texts(row: Row, names: Sequence[str]) -> dict[str, str]:
    cells = _mapping(row)
    return {name: cells[name] for name in names if isinstance(cells.get(name), str)}


def _mapping(row: Row) -> Mapping[str, Any]:
    return row if isinstance(row, Mapping) else {}


def _choice(parts: list[list["str | _Choice"]]) -> list["str | _Choice"]:
    """Return what stands between two braces. Without a bar they are text."""
    if len(parts) == 1:
        return ["{", *parts[0], "}"]
    weights = []
    for part in parts:
        first = part[0] if part else ""
        if isinstance(first, str) and _SEVERAL.match(first):
            raise _WrongTemplate("draws several alternatives with $$, which is not read")
        match = _WEIGHT.match(first) if isinstance(first, str) else None
        weights.append(float(match[1]) if match else 1.0)
        if match and isinstance(first, str):
            part[0] = first[match.end() :]
    if not sum(weights):
        raise _WrongTemplate("has only alternatives of weight 0")
    return [
        _Choice(tuple(tuple(each for each in part if each != "") for part in parts), tuple(weights))
    ]


def _seed_of(row: Row, number: int, run_seed: int, columns: Mapping[str, str]) -> int:
    own = converted("seed", _mapping(row).get(columns.get("seed", "seed")))
    return own if isinstance(own, int) else derive_seed(run_seed, number)


class _Draws:
    """Numbers from 0 to below 1 that follow from a seed alone, on every machine."""

    def __init__(self, seed: int) -> None:
        self._seed, self._count = seed, 0

    def next(self) -> float:
        digest = hashlib.sha256(f"{self._seed}/{self._count}".encode()).digest()
        self._count += 1
        return int.from_bytes(digest[:6]) / (1 << 48)


def _drawn(text: _Text, draws: _Draws) -> str:
    words = []
    for part in text:
        if isinstance(part, str):
            words.append(part)
            continue
        wanted, at = draws.next() * sum(part.weights), 0
        while at < len(part.weights) - 1 and wanted >= part.weights[at]:
            wanted -= part.weights[at]
            at += 1
        words.append(_drawn(part.parts[at], draws))
    return "".join(words)


def _combinations(texts: Sequence[_Text]) -> Iterator[tuple[str, ...]]:
    """Return all combinations of the alternatives in some texts, the last one changing first.

    Raises:
        _WrongTemplate: there are too many.
    """
    count = prod(map(_count, texts))
    if count > MAX_COMBINATIONS:
        raise _WrongTemplate(f"has {count:,} combinations; at most {MAX_COMBINATIONS:,} are made")
    return product(*(_all_of(text) for text in texts))


def _count(text: _Text) -> int:
    return prod(sum(map(_count, part.parts)) for part in text if isinstance(part, _Choice))


def _all_of(text: _Text) -> list[str]:
    sides = ([part] if isinstance(part, str) else _all_of_choice(part) for part in text)
    return ["".join(words) for words in product(*sides)]


def _all_of_choice(choice: _Choice) -> list[str]:
    return [text for part in choice.parts for text in _all_of(part)]
