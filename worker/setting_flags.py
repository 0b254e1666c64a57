"""Make the flags of commands from the worker's settings."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from imagefleet.shared.settings import ENV_PREFIX
from imagefleet.worker.settings import WorkerSettings

F = TypeVar("F", bound=Callable[..., Any])


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
