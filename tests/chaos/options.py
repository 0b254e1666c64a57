"""The options and the output that both commands for chaos runs have."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from tests.chaos.audit import AuditReport
from tests.chaos.suite import ChaosConfig

_OPTIONS: Final = (
    click.option(
        "--seed",
        type=int,
        default=lambda: secrets.randbits(32),
        show_default="a random seed",
        help="Draw the same jobs and faults as an earlier run.",
    ),
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
