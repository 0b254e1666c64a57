"""The options and the output that both commands for chaos runs have."""

import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from tests.chaos.audit import AuditReport
from tests.chaos.suite import ChaosConfig

seed_option: Final = click.option(
    "--seed",
    type=int,
    default=lambda: secrets.randbits(32),
    show_default="a random seed",
    help="Draw the same jobs and faults as an earlier run.",
)
_OPTIONS: Final = (
    seed_option,
    click.option("--jobs", default=ChaosConfig.jobs, show_default=True),
    click.option(
        "--seconds",
        default=ChaosConfig.seconds,
        show_default=True,
        help="How long faults are injected.",
    ),
    click.option("--out", type=Path, default=None, help="Write the table to this file too."),
)


def chaos_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `seed`, `jobs`, `seconds` and `out` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def print_table(report: AuditReport, out: Path | None) -> None:
    """Print the audit, and write it to the file `out`."""
    print(report.markdown())
    if out is not None:
        out.write_text(report.markdown())


def finish_run(report: AuditReport, folder: Path, out: Path | None, *, keep: bool) -> None:
    """Print the audit. End the process with 1 if it found a problem; else remove the folder."""
    print_table(report, out)
    for sentence in report.problems:
        print(f"WRONG: {sentence}")
    if report.problems:
        print(f"the audit failed; the logs are in {folder}")
        sys.exit(1)
    print("0 lost, 0 doubled, 0 foreign")
    if not keep:
        shutil.rmtree(folder)
