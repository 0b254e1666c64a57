"""Define the options of commands that read tables: their type, delimiter and encoding."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from imagefleet.producer.bulk.readers import FILE_TYPES

F = TypeVar("F", bound=Callable[..., Any])


def input_options(default: str) -> Callable[[F], F]:
    """Return a decorator that adds the options.

    Args:
        default: a sentence that says of which type an input is without `--input-format`.
    """
    options = (
        click.option(
            "--input-format",
            type=click.Choice(FILE_TYPES),
            help=f"Type of the input. Default: {default}",
        ),
        click.option(
            "--delimiter", help="Between two cells of CSV files. Default: , and in .tsv a tab."
        ),
        click.option(
            "--encoding", help="Of text files. Default: UTF-8, or as the file itself says."
        ),
        click.option(
            "--ignore-column",
            "ignore_columns",
            multiple=True,
            metavar="COLUMN",
            help="Leave a column out, as if the input did not have it.",
        ),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add
