"""What every command that talks to the fleet shares: a client, and our errors in one line.

Exit code 1 for an error of ours, 2 (click's) for a wrong command line, 130 for Ctrl-C.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Final

import click

from imagefleet.producer.client import Client
from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.redis_client.connection import translate_errors

_INTERRUPTED: Final = 128 + signal.SIGINT
"""What a shell answers for a command that SIGINT ended."""


def connected(command: Callable[..., None]) -> click.Command:
    """Give the command a client, and say our errors in one line."""

    @click.command(name=command.__name__.replace("_", "-"), help=command.__doc__)
    @click.option("--redis-url", help="[IMAGEFLEET_REDIS_URL]")
    @click.option("--namespace", help="[IMAGEFLEET_NAMESPACE]")
    @wraps(command)
    def door(redis_url: str | None, namespace: str | None, **arguments: Any) -> None:
        with clear_exit():
            client = Client(redis_url, namespace=namespace)
            with translate_errors(client.settings.redis_url.get_secret_value()):
                command(client, **arguments)

    return door


def moment(at: float) -> str:
    """Unix seconds as a person reads them."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


@contextmanager
def clear_exit() -> Iterator[None]:
    try:
        yield
    except ImagefleetError as error:
        click.echo(f"imagefleet: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
