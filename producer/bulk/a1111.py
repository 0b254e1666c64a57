"""Read text files as AUTOMATIC1111's web UI reads and writes them.

Input: a file of its script "Prompts from file or textbox", whose lines are prompts or options, or
of infotexts, as it writes them beside and into images. Output: rows.

Sources: https://github.com/AUTOMATIC1111/stable-diffusion-webui, scripts/prompts_from_file.py and
modules/infotext_utils.py.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from imagefleet.producer.bulk.foreign_rows import translated
from imagefleet.producer.bulk.notes import Notes
from imagefleet.producer.bulk.rows import RejectedRow, Row, row_of, shown_value
from imagefleet.producer.bulk.text_files import FileOptions, open_lines, open_text, without_mark
from imagefleet.producer.bulk.text_tables import how_to_read_header
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.foreign_names import FOREIGN_NAMES, plain_name
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS

_HEAD_CHARACTERS: Final = 1 << 16
_JSON: Final = ('{"', '["', '[{"')
_TEXTS: Final = ("prompt", "negative_prompt")
_NOT_HERE: Final = (
    *("outpath_samples", "outpath_grids", "prompt_for_display"),
    *("do_not_save_samples", "do_not_save_grid"),
)
"""Options of the script that say where its files go. They change no image."""
_SETTING: Final = re.compile(r'\s*(\w[\w \-/]{1,60}):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)')
_MAX_OPTIONS: Final = 1 << 16
"""Longer lines of options are rejected: `shlex` takes the square of their length."""
_MIN_SETTINGS: Final = 3
_NEGATIVE: Final = "Negative prompt:"
_SETTINGS: Final = "Steps:"
_SAYS_NOTHING: Final = frozenset(
    {"version", "model_hash", "vae_hash", "lora_hashes", "ti_hashes", "hashes", "user", "rng"}
    | {"batch_size", "batch_pos", "created_date", "civitai_resources", "civitai_metadata"}
)
"""Settings of an infotext that change nothing, or that the seed of the image holds already."""
_BEHIND: Final = re.compile(r"\s(--[A-Za-z][\w-]{0,40})(?=\s|$)")
_MIDJOURNEY: Final = frozenset(
    {"ar", "aspect", "v", "version", "niji", "stylize", "s", "chaos", "c", "no", "q", "quality"}
    | {"iw", "style", "sref", "cref", "tile", "weird", "raw", "hd", "stop", "repeat", "profile"}
)
"""Options of Midjourney, which stand behind the prompt."""


def read_a1111(path: Path, options: FileOptions) -> Iterator[Row | None]:
    """Yield the rows of a file of lines of options, of JSON objects for the API, or of infotexts.

    Raises:
        InvalidRequest: an infotext follows after prompts.
    """
    if holds_infotext(path, options):
        yield from _infotexts(path, options)
        return
    with open_lines(path, options) as lines:
        yield from read_prompts(lines, str(path), options.notes)


def read_text(path: Path, options: FileOptions) -> Iterator[Row | None]:
    """Yield the rows of a text file of which nobody says more: prompts, or what `read_a1111` reads.

    Raises:
        InvalidRequest: it is JSON or a table, or an infotext follows after prompts.
    """
    with open_lines(path, options) as lines:
        first = next((line for line in map(without_mark, lines) if line.strip()), "").strip()
    if first.startswith(_JSON):
        limit = (
            f"is JSON in a text file: it begins with {shown_value(first)!r}. --input-format jsonl "
            "or json (in Python input_format=) reads it; txt takes its lines as prompts"
        )
        raise InvalidRequest("input", str(path), limit)
    if how := how_to_read_header(first):
        limit = (
            f"is a table in a text file: its first line {shown_value(first)!r} names columns. "
            f"{how}; txt takes its lines as prompts"
        )
        raise InvalidRequest("input", str(path), limit)
    yield from read_a1111(path, options)


def holds_infotext(path: Path, options: FileOptions) -> bool:
    """Return whether the beginning of a text file holds an infotext, so that rows are no lines."""
    with open_text(path, options) as file:
        return any(map(_is_settings, file.read(_HEAD_CHARACTERS).splitlines()))


def _is_settings(line: str) -> bool:
    """Return whether a line is the last one of an infotext."""
    line = line.strip()
    return line.startswith(_SETTINGS) and len(_SETTING.findall(line)) >= _MIN_SETTINGS


def read_prompts(lines: Iterable[str], name: str, notes: Notes) -> Iterator[Row | None]:
    """Yield the rows of lines that are prompts, or that begin with options.

    Raises:
        InvalidRequest: a line is that of an infotext.
    """
    for line in map(without_mark, lines):
        # Most lines are plain prompts; this looks at them in 0.1 µs each.
        first = line[:1]
        if first.isalnum() and first not in "NS" and " -" not in line:
            yield line.rstrip("\r\n")
            continue
        text = line.strip()
        if not text:
            yield None
        elif text.startswith("--") and text[2:3].isalpha():
            yield option_row(text, notes)
        elif text.startswith('{"'):
            yield _payload_row(text, notes)
        elif text.startswith(_NEGATIVE) or _is_settings(text):
            limit = (
                "holds prompts first and an infotext later, at the line that begins with "
                f"{shown_value(text)!r}; give them in two files"
            )
            raise InvalidRequest("input", name, limit)
        else:
            if " -" in text and (option := _option_behind(text)):
                notes.say(f"{option} behind a prompt is read as its words", "behind")
            yield line.rstrip("\r\n")


def _option_behind(text: str) -> str | None:
    """Return the first option that stands behind a prompt: of Midjourney, or one of ours."""
    for option in _BEHIND.findall(text):
        name = plain_name(option)
        if name in _MIDJOURNEY or name in FOREIGN_NAMES or name in PARAMETERS:
            return str(option)
    return None


def option_row(line: str, notes: Notes) -> Row:
    """Return the row of a line of options, or why there is none."""
    given: dict[str, Any] = {}
    if len(line) > _MAX_OPTIONS:
        limit = f"has more than {_MAX_OPTIONS:,} characters of options"
        return RejectedRow("line", shown_value(line), limit)
    try:
        words = shlex.split(line)
    except ValueError as error:
        return RejectedRow("line", shown_value(line), f"its quotes do not match: {error}")
    at = 0
    while at < len(words):
        option, at = words[at], at + 1
        name = plain_name(option)
        if not option.startswith("--"):
            return RejectedRow("line", shown_value(option), "stands where an option must begin")
        if name not in FOREIGN_NAMES and name not in PARAMETERS and name not in _NOT_HERE:
            return RejectedRow(option, None, "is no option of a line of prompts")
        if at == len(words):
            return RejectedRow(option, None, "has no value")
        end = at + 1
        while name in _TEXTS and end < len(words) and not words[end].startswith("--"):
            end += 1
        if name not in _NOT_HERE:
            given[name] = " ".join(words[at:end])
        at = end
    return translated(given, notes)


def _payload_row(line: str, notes: Notes) -> Row:
    """Return the row of a request to the web UI's API. A line that is no JSON is a prompt."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        return line
    return translated(given, notes) if isinstance(given, dict) else row_of(given)


def _infotexts(path: Path, options: FileOptions) -> Iterator[Row | None]:
    """Yield a row for each infotext; its line of settings ends it."""
    block: list[str] = []
    with open_lines(path, options) as lines:
        for line in map(without_mark, lines):
            block.append(line.rstrip("\r\n"))
            if _is_settings(line):
                yield infotext_row("\n".join(block), options.notes)
                block = []
    if any(line.strip() for line in block):
        text = next(line for line in block if line.strip())
        yield RejectedRow("infotext", shown_value(text), "has no line that begins with Steps:")


def infotext_row(text: str, notes: Notes) -> Row:
    """Return the row of one infotext, or why there is none."""
    *lines, settings = text.strip().split("\n")
    if not _is_settings(settings):
        return RejectedRow("infotext", shown_value(text), "has no line that begins with Steps:")
    texts: dict[str, list[str]] = {"prompt": [], "negative_prompt": []}
    current = texts["prompt"]
    for line in map(str.strip, lines):
        if line.startswith(_NEGATIVE):
            current = texts["negative_prompt"]
            line = line.removeprefix(_NEGATIVE).strip()
        current.append(line)
    given: dict[str, Any] = {name: "\n".join(each).strip() for name, each in texts.items()}
    if not given["negative_prompt"]:
        del given["negative_prompt"]
    for name, value in settings_in(settings).items():
        plain = plain_name(name)
        if plain in _SAYS_NOTHING:
            continue
        if plain == "clip_skip":
            name = "clip_stop_at_last_layers"
        elif plain == "denoising_strength":  # of a second pass, or of an image that is not here
            notes.leave_out(name, value)
            continue
        given[name] = value
    return translated(given, notes)


def settings_in(line: str) -> dict[str, str]:
    """Return the settings in the last line of an infotext, by their names there."""
    return {name: _unquoted(value) for name, value in _SETTING.findall(line)}


def _unquoted(value: str) -> str:
    if value.startswith('"'):
        try:
            return str(json.loads(value))
        except ValueError:
            return value
    return value.strip()
