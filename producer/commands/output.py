"""Print text that strangers wrote: job ids, addresses, errors, names of tenants and files.

Every command prints through this module, so that no terminal obeys such text.
"""

from typing import Final

import click
from rich.text import Text

from imagefleet.shared.text import printable, printable_json

_MAX_LINE: Final = 100_000
_MAX_CELL: Final = 1_000


def echo(line: str, *, err: bool = False) -> None:
    """Print one line, to standard error if `err`. Its control characters are escaped."""
    click.echo(printable(line, _MAX_LINE), err=err)


def echo_json(document: str) -> None:
    """Print a JSON document, which may have several lines."""
    click.echo(printable_json(document))


def cell(text: str) -> Text:
    """Return `text` for a table of rich, which would read brackets in a str as markup."""
    return Text(printable(text, _MAX_CELL))
