"""Print text that strangers wrote: job ids, addresses, errors, names of tenants and files.

Every command prints through this module, so that no terminal obeys such text.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.text import Text

from imagefleet.shared.text.printable import printable, printable_json

_MAX_LINE: Final = 100_000
_MAX_CELL: Final = 1_000
_WIDTH_OF_FILES: Final = 10_000
"""A line in a file or a pipe may have so many characters. rich would break lines after 80, and
`grep` would find halves of them."""

F = TypeVar("F", bound=Callable[..., Any])


def make_console() -> Console:
    """Return what prints views of rich. A terminal's lines have its width, or that of COLUMNS."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH_OF_FILES
    return console


def json_option(what: str = "Print one JSON object per line.") -> Callable[[F], F]:
    """Add the flag `--json`, which the command gets as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=what)


def limit_option(command: F) -> F:
    """Add the option `--limit`, a number of at least 1."""
    return click.option(
        "--limit",
        type=click.IntRange(min=1),
        default=100,
        show_default=True,
        help="Print at most this many.",
    )(command)


def echo(line: str, *, err: bool = False) -> None:
    """Print one line, to standard error if `err`. Its control characters are escaped."""
    click.echo(printable(line, _MAX_LINE), err=err)


def echo_json(document: str) -> None:
    """Print a JSON document, which may have several lines."""
    click.echo(printable_json(document))


def echo_fields(fields: Mapping[str, object], *, as_json: bool) -> None:
    """Print one line: the values, or with their names as JSON."""
    if as_json:
        echo_json(json.dumps(fields, ensure_ascii=False))
    else:
        echo("  ".join(str(value) for value in fields.values()))


def note_none(what: str) -> None:
    """Say on standard error that there is nothing to list; standard output stays empty."""
    echo(f"no {what}", err=True)


def cell(text: str) -> Text:
    """Return `text` for a table of rich, which would read brackets in a str as markup."""
    return Text(printable(text, _MAX_CELL))


def format_duration(seconds: float) -> str:
    """Return a time that can be read at a glance."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
