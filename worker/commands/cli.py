"""The command `imagefleet-worker` runs a Celery worker with our settings as flags.

It also plans a worker for another host, and compiles programs ahead of one.

Every setting of docs/settings.md is a flag. A flag overrides its environment variable. Arguments
after `--` go to Celery's own worker command.
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from types import FrameType
from typing import Any, Final

import click

from imagefleet.shared.process.extras import how_to_install
from imagefleet.shared.settings.settings import ENV_PREFIX
from imagefleet.worker.process.end_signals import heard_end_signals
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.process.log_format import use_json

_LOG_LINE: Final = "[%(asctime)s: %(levelname)s/%(processName)s] %(message)s"
"""Celery's own log lines have this format."""
_PACKAGES: Final = ("celery", "jax", "flax", "numpy", "PIL", "boto3", "tokenizers", "safetensors")
"""The extra `worker` installs these packages."""


def _is_missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ImportError:
        return True


if missing := list(filter(_is_missing, _PACKAGES)):
    print(
        f"imagefleet-worker: {', '.join(missing)} cannot be imported; {how_to_install('worker')}",
        file=sys.stderr,
    )
    sys.exit(ExitCode.CONFIG)

# They import numpy.
from imagefleet.worker.commands.compile import compile_command  # noqa: E402
from imagefleet.worker.commands.doctor import doctor  # noqa: E402
from imagefleet.worker.commands.model_switcher import ModelSwitcher  # noqa: E402
from imagefleet.worker.commands.plan import plan  # noqa: E402
from imagefleet.worker.commands.setting_flags import exit_on_error, setting_flags  # noqa: E402
from imagefleet.worker.settings.worker_settings import WorkerSettings  # noqa: E402
from imagefleet.worker.startup.load_model import read_model  # noqa: E402


class _RunByDefault(click.Group):
    """A group that runs `run` where no command is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, *ctx.help_option_names, "--version"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the group, its commands, and the options of `run`."""
        super().format_options(ctx, formatter)
        run = self.commands["run"]
        with click.Context(run, info_name="run", parent=ctx) as inner:
            records = [each.get_help_record(inner) for each in run.get_params(inner)]
        with formatter.section("Options of run, the default command"):
            formatter.write_dl([each for each in records if each is not None])


@click.group(
    cls=_RunByDefault,
    options_metavar="",
    subcommand_metavar="[COMMAND] [OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="imagefleet", prog_name="imagefleet-worker")
def main() -> None:
    """Generate images on this host, or plan for another.

    Without a command it is `run`: `imagefleet-worker --devices 4` runs a worker. Each command has
    its own --help.
    """


@main.command()
@setting_flags()
@click.option("--loglevel", default="INFO", show_default=True, help="Celery's log level.")
@click.argument("celery_arguments", nargs=-1, type=click.UNPROCESSED)
def run(loglevel: str, celery_arguments: tuple[str, ...], **flags: Any) -> None:
    """Generate the images of queued jobs with the devices of this host.

    The worker loads the model, compiles its shapes, then claims jobs until it is stopped. Options
    of Celery's own worker command follow `--`: `imagefleet-worker --devices 4 -- -E` sends the
    events that Flower reads.

    SIGTERM, SIGHUP or Ctrl-C drains the worker: it claims no more jobs, requeues those that are not
    on the devices, and finishes the others within the drain time. A job that is not finished by
    then is requeued too. After a preemption notice the drain is shorter. A second signal, or
    SIGQUIT, requeues all jobs at once and ends the worker.

    \b
    Exit codes:
    0   success: the worker was drained, or stopped before it was ready
    69  unavailable: the devices or the storage failed for longer than the quarantine
    70  internal software error
    74  I/O error: the devices hung
    75  temporary failure: ended before the drain was complete, and other workers get its jobs;
        or Redis, the storage or the Hub could not be reached at the start
    78  configuration error: a setting, Redis, the storage or the checkpoint is wrong
    """
    given = {name: value for name, value in flags.items() if value is not None}
    with exit_on_error(given):
        settings = WorkerSettings.load(**given)
        _check_model_settings(settings)
    os.environ.update({f"{ENV_PREFIX}{name.upper()}": value for name, value in given.items()})
    if settings.models:
        logging.basicConfig(level=loglevel.upper(), format=_LOG_LINE)
        if settings.log_format == "json":
            use_json(logging.getLogger())
        with exit_on_error(given):
            switcher = ModelSwitcher(
                settings, ["run", "--loglevel", loglevel, "--", *celery_arguments]
            )
            sys.exit(switcher.run())
    from imagefleet.worker.app import app  # the import reads the settings from the environment
    from imagefleet.worker.celery_app.command import run_celery

    no_banner = ["--quiet"] if settings.log_format == "json" else []
    options = ["worker", "--loglevel", loglevel, "--without-gossip", "--without-mingle"]
    if not _EVENT_OPTIONS & set(celery_arguments):
        options.append("--without-heartbeat")  # else an event and a connection that nobody reads
    code = run_celery(app, [*no_banner, *options, *_node_name(celery_arguments), *celery_arguments])
    # A thread on a hung device cannot be joined. All jobs are finished or requeued by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _end_before_ready(number: int, frame: FrameType | None) -> None:
    click.echo("imagefleet-worker: stopped before it was ready; nothing was claimed", err=True)
    os._exit(0)


def _check_model_settings(settings: WorkerSettings) -> None:
    """Check the settings against the model before Celery prints its banner, so that a user sees the
    error alone. With several models the process of each one does it.

    Raises:
        ImagefleetError: a setting does not fit the model, or its configs cannot be read.
    """
    if settings.models:
        return
    before = {each: signal.signal(each, _end_before_ready) for each in heard_end_signals()}
    logging.disable(logging.WARNING)  # the start reads the same again, and logs it
    try:
        read_model(settings)
    finally:
        logging.disable(logging.NOTSET)
        for each, handler in before.items():
            signal.signal(each, handler)


main.add_command(compile_command)
main.add_command(plan)
main.add_command(doctor)


_EVENT_OPTIONS: Final = {"-E", "--task-events", "--events"}


def _node_name(celery_arguments: Sequence[str]) -> list[str]:
    """Return the options that name this worker, unless its user named it.

    Several workers of a host would all be `celery@host`, and answer `celery inspect` as one.
    """
    if any(word.startswith(("-n", "--hostname")) for word in celery_arguments):
        return []
    return ["--hostname", f"imagefleet-{os.getpid()}@%h"]
