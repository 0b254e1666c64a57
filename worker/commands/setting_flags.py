"""Make command-line flags of the worker's settings, and name them in errors."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.settings.settings import ENV_PREFIX
from imagefleet.shared.text.printable import mask_credentials, printable
from imagefleet.worker.process.exit_codes import exit_code_of
from imagefleet.worker.settings.worker_settings import WorkerSettings

F = TypeVar("F", bound=Callable[..., Any])

_MAX_LINE: Final = 2_000


def setting_flags(names: Sequence[str] = tuple(WorkerSettings.model_fields)) -> Callable[[F], F]:
    """Add a flag for each of these settings. A command gets None for those that are not given."""

    def add(command: F) -> F:
        for name in reversed(names):
            description = WorkerSettings.model_fields[name].description
            command = click.option(
                f"--{name.replace('_', '-')}",
                name,
                metavar="VALUE",
                help=f"{description} [{ENV_PREFIX}{name.upper()}]",
            )(command)
        return command

    return add


def name_flag(sentence: str, given: Mapping[str, object]) -> str:
    """Return an error that names each setting by its flag if it was given so, else by its variable.

    Args:
        sentence: it names settings by their variables, perhaps the first one by its bare name.
        given: the values of flags by setting; None for a flag that was not given.
    """

    def name(found: re.Match[str]) -> str:
        setting = found[1].lower()
        if setting not in WorkerSettings.model_fields:
            return found[0]
        if given.get(setting) is None:
            return f"{ENV_PREFIX}{setting.upper()}"
        return f"--{setting.replace('_', '-')}"

    first_named = re.sub(r"^(\w+)(?==|: )", name, sentence)
    return re.sub(rf"{ENV_PREFIX}([A-Z_]+)", name, first_named)


@contextmanager
def exit_on_error(flags: Mapping[str, object]) -> Iterator[None]:
    """Turn an error of imagefleet into one line and an exit code.

    Args:
        flags: see `name_flag`.
    """
    try:
        yield
    except ImagefleetError as error:
        line = printable(mask_credentials(name_flag(str(error), flags)), _MAX_LINE)
        click.echo(f"imagefleet-worker: {line}", err=True)
        sys.exit(exit_code_of(error))
