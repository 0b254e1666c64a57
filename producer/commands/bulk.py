"""The commands of `imagefleet bulk` start, watch, stop, verify and repair bulk runs."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from imagefleet.producer.bulk.progress_view import Rates, render, watch
from imagefleet.producer.bulk.rejected import describe_rejected
from imagefleet.producer.bulk.run import DEFAULT_PRIORITY, BulkRun
from imagefleet.producer.bulk.start_run import DEFAULT_SHARD_SIZE
from imagefleet.producer.bulk.verify import VerifyReport
from imagefleet.producer.client import Client
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.output import (
    cell,
    echo,
    echo_fields,
    echo_json,
    json_option,
    note_none,
)
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.errors import UnknownRun
from imagefleet.shared.jobs.model import ImageFormat, State

_MAX_LISTED_ROWS: Final = 20
"""Maximum rows that are printed one by one; files in the destination list all of them."""


def _choice(kind: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([each.value for each in kind])


@click.group()
def bulk() -> None:
    """Generate whole datasets from files of prompts.

    RUN is the destination or the id of a run.
    """


@client_command
@click.argument("prompts")
@click.argument("destination")
@click.option("--num-images-per-prompt", type=int, help="Images per row. Default: 1.")
@click.option(
    "--shard-size",
    type=int,
    default=DEFAULT_SHARD_SIZE,
    show_default=True,
    help="Images per shard.",
)
@click.option(
    "--format",
    type=_choice(BulkFormat),
    default="webdataset",
    show_default=True,
    help="Format of the shards.",
)
@click.option(
    "--image-format",
    type=_choice(ImageFormat),
    default="png",
    show_default=True,
    help="Format of the image files.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="For rows without a seed.")
@click.option("--negative-prompt", help="What the images should not show.")
@click.option("--height", type=int, help="Pixels; together with --width. Default: the model's.")
@click.option("--width", type=int, help="Pixels; together with --height.")
@click.option("--num-inference-steps", type=int, help="Denoising steps. Default: the model's.")
@click.option("--guidance-scale", type=float, help="Default: the model's.")
@click.option("--scheduler", help="Default: the model's.")
@click.option("--model", help="Default: the fleet's default model.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="PARAMETER=COLUMN",
    help="Read a parameter from another column, as in prompt=caption.",
)
@click.option("--dedupe", is_flag=True, help="Generate rows with equal parameters only once.")
@click.option("--max-failures", type=int, help="Stop the run when more images than this fail.")
@click.option(
    "--priority",
    type=int,
    default=DEFAULT_PRIORITY,
    show_default=True,
    help="0 (first) to 9 (last).",
)
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Show the progress until the end."
)
@json_option("Print the status as one JSON object, with --wait at the end, and no progress.")
def run(
    client: Client,
    prompts: str,
    destination: str,
    columns: tuple[str, ...],
    wait: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate images for every row of PROMPTS (.txt, .csv, .jsonl or .parquet) in DESTINATION.

    The same command resumes a run that has not finished. The exit code is 1 if the run does not
    succeed.
    """
    given = {name: value for name, value in options.items() if value is not None}
    bulk_run = client.bulk(prompts, destination, columns=_parse_columns(columns), **given)
    plan = bulk_run.plan
    echo(
        f"run {bulk_run.id}: {plan.samples} images from {plan.rows} rows in {bulk_run.destination}",
        err=as_json,
    )
    if plan.duplicates:
        echo(f"{plan.duplicates} duplicate rows are left out", err=as_json)
    _print_rejected(bulk_run)
    if wait:
        _watch(bulk_run, as_json=as_json)
    elif as_json:
        echo_json(bulk_run.status().model_dump_json())


@client_command
@click.argument("name", metavar="[RUN]", required=False)
@json_option("Print one JSON object per run.")
def status(client: Client, name: str | None, as_json: bool) -> None:
    """Show the status of RUN, or of all runs that Redis has a record of."""
    statuses = [client.find_bulk(name).status()] if name else list(_all_statuses(client))
    if not statuses:
        note_none("bulk runs")
    for each in statuses:
        if as_json:
            echo_json(each.model_dump_json())
        else:
            Console().print(render(each, Rates(0.0, each)))
    if not all(each.done for each in statuses):
        client.connection.warn_if_no_worker()


@client_command
@click.argument("name", metavar="RUN")
@click.option("--timeout", type=float, help="Maximum seconds to wait, without a progress view.")
@json_option("Print the last status as one JSON object, and no progress.")
def wait(client: Client, name: str, timeout: float | None, as_json: bool) -> None:
    """Show the progress of a run until it ends. The exit code is 1 if it does not succeed."""
    bulk_run = client.find_bulk(name)
    if timeout is not None:
        bulk_run.wait(timeout)
    _watch(bulk_run, as_json=as_json)


@client_command
@click.argument("name", metavar="RUN")
@json_option("Print one JSON object.")
def cancel(client: Client, name: str, as_json: bool) -> None:
    """Stop a run between two batches. Finished images stay, and `bulk run` resumes the run."""
    echo_fields({"run": name, "state": client.find_bulk(name).cancel()}, as_json=as_json)


@client_command
@click.argument("name", metavar="RUN")
@json_option("Print one JSON object.")
def retry_failed(client: Client, name: str, as_json: bool) -> None:
    """Generate failed rows again."""
    shards = client.find_bulk(name).retry_failed()
    if as_json:
        echo_fields({"run": name, "shards_sent_again": shards}, as_json=True)
    else:
        echo(f"{shards} shards sent again")


@client_command
@click.argument("name", metavar="RUN")
@click.option("--sample", type=click.IntRange(min=0), default=0, help="Rows to generate again.")
@click.option("--repair", is_flag=True, help="Generate damaged shards again.")
@json_option("Print the whole report as one JSON object.")
def verify(client: Client, name: str, sample: int, repair: bool, as_json: bool) -> None:
    """Check every file against the plan. The exit code is 1 if there is a problem.

    Unplanned files are not deleted, also not by --repair. Delete them yourself.
    """
    bulk_run = client.find_bulk(name)
    report = bulk_run.verify(sample=sample)
    sent = bulk_run.repair(report) if repair and not report.clean else 0
    if as_json:
        echo_fields({**asdict(report), "shards_sent_again": sent}, as_json=True)
        sys.exit(0 if report.clean else 1)
    echo(_summary(report))
    Console().print(_problem_table(report))
    if report.clean:
        return
    if repair:
        echo(f"{sent} shards sent again; `imagefleet bulk wait` shows their progress")
    if report.unplanned_files:
        echo(
            f"{report.unplanned_files} unplanned files: they are not in the plan, and imagefleet "
            "does not delete them. Delete them, or `verify` reports them again."
        )
    sys.exit(1)


for command in (run, status, wait, cancel, verify, retry_failed):
    bulk.add_command(command)


def _all_statuses(client: Client) -> Iterator[RunStatus]:
    """Yield the statuses of all runs whose records have not expired."""
    with client.connection.runs() as runs:
        for run_id in runs.ids():
            with suppress(UnknownRun):
                yield runs.get(run_id)


def _parse_columns(columns: tuple[str, ...]) -> dict[str, str]:
    """Return parameter to column. Raise click.UsageError if an option is not PARAMETER=COLUMN."""
    parsed = {}
    for text in columns:
        name, equals, column = text.partition("=")
        if not equals or not name or not column:
            raise click.UsageError(
                f"--column {text}: must be PARAMETER=COLUMN, as in prompt=caption"
            )
        parsed[name.replace("-", "_")] = column
    return parsed


def _print_rejected(bulk_run: BulkRun) -> None:
    rejected = bulk_run.plan.rejected
    if not rejected:
        return
    echo(f"{rejected} rows were rejected; plan/rejected.jsonl lists all of them:", err=True)
    for row, _ in zip(bulk_run.rejected(), range(_MAX_LISTED_ROWS), strict=False):
        echo(f"  {describe_rejected(row)}", err=True)


def _watch(bulk_run: BulkRun, *, as_json: bool) -> None:
    """Show the progress of a run until it ends, or then its status, and end this process."""
    try:
        if as_json:
            last = bulk_run.wait()
            echo_json(last.model_dump_json())
        else:
            last = watch(bulk_run.statuses(every_s=1.0), Console())
    except KeyboardInterrupt:
        echo(f"The run continues. `imagefleet bulk wait {bulk_run.id}` shows it again.", err=True)
        sys.exit(130)
    if last.failed_images:
        for failure, _ in zip(bulk_run.failures(), range(_MAX_LISTED_ROWS), strict=False):
            echo(f"  row {failure.row}: {failure.code}: {failure.message}", err=True)
    sys.exit(0 if last.state is State.SUCCEEDED else 1)


def _summary(report: VerifyReport) -> str:
    text = (
        f"{report.present} of {report.planned} images in {report.shards} shards, "
        f"{report.failed} failed"
    )
    if report.regenerated:
        text += (
            f"; {report.regenerated} generated again, with a difference of at most "
            f"{report.max_difference} of 255 levels"
        )
    return text


def _problem_table(report: VerifyReport) -> Table:
    table = Table("shard", "problem", "samples", "detail")
    for problem in report.problems:
        samples = str(problem.samples) if problem.samples else ""
        table.add_row(cell(problem.shard), problem.what, samples, cell(problem.detail))
    if report.clean:
        table.add_row("all", "as planned", str(report.present), "")
    return table
