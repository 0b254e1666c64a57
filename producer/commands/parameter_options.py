"""Make the options of commands from the table of job parameters, for `submit` and `bulk run`.

Input: names of parameters. Output: a decorator that adds their options. An option that is not given
has the value None, so that the default of the request holds.
"""

import json
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import click

from imagefleet.producer.connection.input_images import path_or_address
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.lora_scales import parse_pairs
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS, kind
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS
from imagefleet.shared.text.durations import parse_duration

F = TypeVar("F", bound=Callable[..., Any])
_NAME: Final = re.compile("`([a-z_]+)`")


def parameter_options(names: Iterable[str]) -> Callable[[F], F]:
    """Return a decorator that adds the options of parameters, in this order."""
    options = [_option(name) for name in names]

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _option(name: str) -> Callable[[F], F]:
    row = PARAMETERS[name]
    settings = {"type": _type_of(name), "help": _help_of(row.help or row.about)}
    return click.option(_flag(name), name, **{**settings, **_SPECIAL.get(name, {})})


def _flag(name: str) -> str:
    return PARAMETERS[name].flag or f"--{name.replace('_', '-')}"


def _help_of(text: str) -> str:
    """Return a sentence with the flags of the parameters that it names in backquotes."""
    named = _NAME.sub(lambda each: _flag(each[1]) if each[1] in PARAMETERS else each[1], text)
    return named.replace("`", "")


def _type_of(name: str) -> Any:
    """Return the type that click parses: a number, a flag, one of several words, or a text."""
    plain = kind(name)
    if isinstance(plain, type) and issubclass(plain, StrEnum):
        return click.Choice([each.value for each in plain])
    return plain if plain in (int, float, bool) else str


def _parse_input(_context: click.Context, option: click.Parameter, text: str | None) -> Any:
    """Return a Path for a text that begins like one, else the text: an address or a key."""
    try:
        return None if text is None else path_or_address(str(option.name), text, Path())
    except InvalidRequest as error:
        raise click.BadParameter(f"{text} {error.limit}") from None


def _parse_loras(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> str | None:
    """Return the text of all options. Raise click.BadParameter if a scale is not a scale."""
    for text in texts:
        try:
            parse_pairs(text)
        except ValueError as error:
            raise click.BadParameter(f"{text}: {error}") from None
    return ",".join(texts) or None


def _parse_keep(text: str) -> float:
    """Return seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}") from None


def _parse_metadata(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
    if text is None:
        return None
    try:
        metadata = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}") from None
    if not isinstance(metadata, dict):
        raise click.BadParameter("must be a JSON object, as in '{\"shot\": 3}'")
    return metadata


def _given(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> Any:
    """Return the values of an option that may be repeated; None if it is not given."""
    return values or None


_SPECIAL: Final[dict[str, dict[str, Any]]] = {
    **{name: {"is_flag": True, "default": None} for name in PARAMETERS if kind(name) is bool},
    **{name: {"callback": _parse_input} for name in INPUT_FIELDS},
    "loras": {"multiple": True, "callback": _parse_loras, "metavar": "NAME:SCALE"},
    "callback_events": {
        "multiple": True,
        "callback": _given,
        "type": click.Choice([each.value for each in get_args(kind("callback_events"))[0]]),
    },
    "keep": {"type": _parse_keep, "metavar": "TIME"},
    "metadata": {"callback": _parse_metadata},
}
"""What the options of some parameters have beside a type and a help."""
