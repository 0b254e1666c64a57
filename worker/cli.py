"""`imagefleet-worker`: the Celery worker with our settings as flags.

Every setting of docs/settings.md is a flag; a flag wins over its environment variable. Arguments
after `--` go to Celery's own worker command.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.settings import ENV_PREFIX
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.settings import WorkerSettings


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    for name, setting in reversed(WorkerSettings.model_fields.items()):
        command = click.option(
            f"--{name.replace('_', '-')}",
            name,
            metavar="VALUE",
            help=f"{setting.description} [{ENV_PREFIX}{name.upper()}]",
        )(command)
    return command


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@_flags
@click.option("--loglevel", default="INFO", show_default=True, help="Celery's log level.")
@click.argument("celery_arguments", nargs=-1, type=click.UNPROCESSED)
def main(loglevel: str, celery_arguments: tuple[str, ...], **flags: Any) -> None:
    """Turn queued prompts into pictures with all devices of this host.

    Loads the model, compiles its shapes, then takes work until it is told to stop. Options of
    Celery's own worker come after `--`: `imagefleet-worker --devices 4 -- -E` sends the events that
    Flower reads.

    SIGTERM or Ctrl-C: takes nothing more, hands back at once what no device has seen, and finishes
    the rest within the drain time, or hands it back too. A second one, or the notice at the
    preemption URL: hands everything back and ends.

    \b
    Exit codes:
    0   drained
    69  the devices, or the store, failed for too long
    70  internal error
    74  the devices hung
    75  ended before the drain was through; what it had runs elsewhere
    78  a setting, Redis, the store or the checkpoint is wrong
    """
    typed = {name: value for name, value in flags.items() if value is not None}
    try:
        WorkerSettings.load(**typed)  # names a wrong flag as it was typed
    except ConfigurationError as error:
        click.echo(f"imagefleet-worker: {error}", err=True)
        sys.exit(ExitCode.CONFIG)
    os.environ.update({f"{ENV_PREFIX}{name.upper()}": value for name, value in typed.items()})
    from imagefleet.worker.app import app  # reads the settings, so it comes after the flags

    options = ["worker", "--loglevel", loglevel, "--without-gossip", "--without-mingle"]
    try:
        code = app.start(argv=[*options, *celery_arguments])
    except SystemExit as ended:
        code = ended.code
    # Work on a hung device cannot be joined; everything worth keeping has been handed back.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
