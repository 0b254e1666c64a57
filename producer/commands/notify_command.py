"""Run a command of the user for each event of a run: the event is its standard input, as JSON.

Input: the options of a command that waits for the run. Output: a function through which the
statuses of the run pass.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Final, Self, TypeVar

import click

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.bulk.run_notices import STALLED_S, RunNotices
from imagefleet.producer.commands.output import echo
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.text.printable import printable, printable_lines

F = TypeVar("F", bound=Callable[..., Any])

_OPTION: Final = "--notify-command"
_TIMEOUT_S: Final = 60.0
"""A command that needs longer is killed: the next event waits for it."""
_MAX_OUTPUT_BYTES: Final = 4_096
"""So much of its output is printed."""


@dataclass(frozen=True, kw_only=True)
class NotifyCommand:
    """Runs a command: a program and its arguments. No shell reads them."""

    words: tuple[str, ...]
    timeout_s: float = _TIMEOUT_S

    @classmethod
    def parse(cls, text: str) -> Self:
        """Split a text as a POSIX shell splits words: by blanks, with quotes and backslashes.

        Raises:
            click.UsageError: a quote is not closed, or the first word is no program of this host.
        """
        try:
            words = tuple(shlex.split(text))
        except ValueError:
            raise click.UsageError(f"{_OPTION} {text!r}: a quote is not closed") from None
        if not words:
            raise click.UsageError(f"{_OPTION} must name a program")
        if shutil.which(words[0]) is None:
            raise click.UsageError(
                f"{_OPTION}: there is no program {words[0]!r} here. What needs a shell, as a pipe "
                "or a variable, goes into sh -c '…'"
            )
        return cls(words=words)

    def watched(self, statuses: Iterator[RunStatus], notices: RunNotices) -> Iterator[RunStatus]:
        """Yield the statuses, and run the command for each event that follows from them."""
        for status in statuses:
            for event in notices.of(status, time.monotonic()):
                self.run(event)
            yield status

    def run(self, event: Mapping[str, Any]) -> None:
        """Run the command. Print its output, and why it failed if it did, on standard error."""
        with tempfile.TemporaryFile() as output:
            reason = self._run(json.dumps(event), output)
            output.seek(0)
            if said := output.read(_MAX_OUTPUT_BYTES).decode(errors="replace").rstrip():
                echo(printable_lines(said), err=True)
        if reason:
            echo(f"{_OPTION} failed for {event['type']}: {reason}", err=True)

    def _run(self, text: str, output: IO[bytes]) -> str | None:
        """Return why the command failed; None if it did not."""
        try:
            process = subprocess.Popen(
                self.words,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            return printable(str(error))
        try:
            process.communicate(f"{text}\n".encode(), timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            return f"it did not end within {self.timeout_s:g} s and was killed"
        finally:
            _kill(process)
        return f"exit code {process.returncode}" if process.returncode else None


def _parsed(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> NotifyCommand | None:
    return None if text is None else NotifyCommand.parse(text)


def notify_options(command: F) -> F:
    """Add `--notify-command` and `--stalled-after` to a command that waits for a run."""
    notify = click.option(
        _OPTION,
        metavar="COMMAND",
        callback=_parsed,
        help="Run this at the start, each tenth of the images, a stall and the end, with the event "
        "as JSON on its standard input. It is split into words as by a shell, but no shell runs "
        "it.",
    )
    stalled = click.option(
        "--stalled-after",
        type=click.FloatRange(min=0, min_open=True),
        default=STALLED_S,
        show_default=True,
        help=f"Seconds without an image until {_OPTION} learns of a stall.",
    )
    return notify(stalled(command))


def watched_by(
    command: NotifyCommand | None, run: BulkRun, stalled_after: float
) -> Callable[[Iterator[RunStatus]], Iterator[RunStatus]]:
    """Return what yields the statuses of a run that it is given, and runs the command, if one is
    given, for each event."""
    if command is None:
        return iter
    return partial(command.watched, notices=RunNotices(run, stalled_after))


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a command that has not ended, with what it has started."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
