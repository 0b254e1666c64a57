"""Give each command a connected client, and print errors in one line.

Exit codes: 1 for an ImagefleetError, 2 for a wrong command line (click's), 130 for Ctrl-C.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Final

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.commands.output import echo
from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.foreign_names import hint
from imagefleet.shared.redis_client.connection import translate_errors
from imagefleet.shared.text.printable import mask_credentials

_EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
"""Shells report this exit code for a command that SIGINT ended."""


class _Command(click.Command):
    """A command that says how the option of another tool is called here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            called = hint(error.option_name, {str(each.name): each.opts[0] for each in self.params})
            if called is None:
                raise
            raise click.UsageError(f"{error.option_name} {called}", ctx) from None


def client_command(command: Callable[..., None]) -> click.Command:
    """Turn a function into a command that gets a client and prints errors in one line.

    The function's name and docstring become the command's name and help.
    """

    @click.command(cls=_Command, name=command.__name__.replace("_", "-"), help=command.__doc__)
    @click.option("--redis-url", help="Address of Redis. Default: IMAGEFLEET_REDIS_URL.")
    @click.option("--namespace", help="Prefix of all keys in Redis. Default: IMAGEFLEET_NAMESPACE.")
    @wraps(command)
    def run_command(redis_url: str | None, namespace: str | None, **arguments: Any) -> None:
        with exit_on_errors():
            client = Client(redis_url, namespace=namespace)
            with translate_errors(client.settings.redis_url.get_secret_value()):
                command(client, **arguments)

    return run_command


def iso_time(at: float) -> str:
    """Return Unix seconds as an ISO 8601 time in UTC; `-` if there is no such time."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # anybody may write numbers to Redis
        return "-"


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """Print an ImagefleetError of the block in one line and exit with its code."""
    try:
        yield
    except ImagefleetError as error:
        echo(mask_credentials(f"imagefleet: {error}"), err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
