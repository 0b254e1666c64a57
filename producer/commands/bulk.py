"""`imagefleet bulk`: whole datasets, from a file of prompts to finished shards."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from imagefleet.producer.bulk.progress_view import Rates, render, watch
from imagefleet.producer.bulk.rejected import describe_rejected
from imagefleet.producer.bulk.run import DEFAULT_PRIORITY, BulkRun
from imagefleet.producer.bulk.start import DEFAULT_SHARD_SIZE
from imagefleet.producer.bulk.verify import VerifyReport
from imagefleet.producer.client import Client
from imagefleet.producer.commands.connection import client_command
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.errors import UnknownRun
from imagefleet.shared.jobs.model import ImageFormat, State

_MAX_LISTED_ROWS: Final = 20
"""Rows told one by one; the files in the destination tell all."""


def _choice(kind: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([each.value for each in kind])


@click.group()
def bulk() -> None:
    """Whole datasets: "img2dataset, but the images are made".

    RUN is a run's destination or its id.
    """


@client_command
@click.argument("prompts")
@click.argument("destination")
@click.option("--num-images-per-prompt", type=int)
@click.option(
    "--shard-size", type=int, default=DEFAULT_SHARD_SIZE, show_default=True, help="In pictures."
)
@click.option("--format", type=_choice(BulkFormat), default="webdataset", show_default=True)
@click.option("--image-format", type=_choice(ImageFormat), default="png", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Rows derive theirs from it.")
@click.option("--negative-prompt")
@click.option("--height", type=int)
@click.option("--width", type=int)
@click.option("--num-inference-steps", type=int)
@click.option("--guidance-scale", type=float)
@click.option("--scheduler")
@click.option("--model")
@click.option(
    "--column", "columns", multiple=True, metavar="PARAMETER=COLUMN", help="As in prompt=caption."
)
@click.option("--dedupe", is_flag=True, help="Paint rows that ask for the same only once.")
@click.option("--max-failures", type=int, help="Pictures that may fail before the run stops.")
@click.option("--priority", type=int, default=DEFAULT_PRIORITY, show_default=True)
@click.option("--wait/--no-wait", default=True, show_default=True)
def run(
    client: Client,
    prompts: str,
    destination: str,
    columns: tuple[str, ...],
    wait: bool,
    **options: Any,
) -> None:
    """Make a picture of every row of PROMPTS (.txt, .csv, .jsonl or .parquet) in DESTINATION.

    The same command again goes on where the run stands. Exit code 1 if it does not succeed.
    """
    given = {name: value for name, value in options.items() if value is not None}
    found = client.bulk(prompts, destination, columns=_pairs(columns), **given)
    plan = found.plan
    click.echo(
        f"run {found.id}: {plan.samples} pictures of {plan.rows} rows in {found.destination}"
    )
    if plan.duplicates:
        click.echo(f"{plan.duplicates} rows left out: they ask for the same as an earlier one")
    _print_rejected(found)
    if wait:
        _watch(found)


@client_command
@click.argument("name", metavar="[RUN]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Whole records, one JSON object a line.")
def status(client: Client, name: str | None, as_json: bool) -> None:
    """Where a run stands; without RUN all that Redis knows."""
    runs = [client.find_bulk(name).status()] if name else list(_all(client))
    for found in runs:
        if as_json:
            click.echo(found.model_dump_json())
        else:
            Console().print(render(found, Rates(0.0, found)))
    if not all(found.done for found in runs):
        client.connection.warn_if_no_worker()


@client_command
@click.argument("name", metavar="RUN")
@click.option("--timeout", type=float, help="Seconds to wait at most, without a view.")
def wait(client: Client, name: str, timeout: float | None) -> None:
    """Watch a run until it ends. Exit code 1 if it does not succeed."""
    found = client.find_bulk(name)
    if timeout is not None:
        found.wait(timeout)
    _watch(found)


@client_command
@click.argument("name", metavar="RUN")
def cancel(client: Client, name: str) -> None:
    """Stop a run between two batches. What is made stays; `bulk run` goes on with it."""
    click.echo(f"{name}  {client.find_bulk(name).cancel()}")


@client_command
@click.argument("name", metavar="RUN")
def retry_failed(client: Client, name: str) -> None:
    """Paint the rows that failed once more."""
    click.echo(f"{client.find_bulk(name).retry_failed()} shards sent again")


@client_command
@click.argument("name", metavar="RUN")
@click.option("--sample", type=click.IntRange(min=0), default=0, help="Rows to paint again.")
@click.option("--repair", is_flag=True, help="Have damaged shards made again.")
def verify(client: Client, name: str, sample: int, repair: bool) -> None:
    """Hold every file against the plan. Exit code 1 unless all is well.

    Files that nobody planned are left to you to delete, also by --repair.
    """
    found = client.find_bulk(name)
    report = found.verify(sample=sample)
    click.echo(_sum(report))
    Console().print(_table(report))
    if report.clean:
        return
    if repair:
        click.echo(f"{found.repair(report)} shards sent again; `imagefleet bulk wait` follows them")
    if report.unplanned_files:
        click.echo(
            f"stray files: {report.unplanned_files}. Nobody planned them, so only you may delete them; "
            "`verify` is content once they are gone"
        )
    sys.exit(1)


for command in (run, status, wait, cancel, verify, retry_failed):
    bulk.add_command(command)


def _all(client: Client) -> Iterator[RunStatus]:
    """Those whose records have not expired."""
    with client.connection.runs() as runs:
        for each in runs.ids():
            with suppress(UnknownRun):
                yield runs.get(each)


def _pairs(columns: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in columns:
        name, equals, column = text.partition("=")
        if not equals or not name or not column:
            raise click.UsageError(
                f"--column {text}: must be PARAMETER=COLUMN, as in prompt=caption"
            )
        pairs[name.replace("-", "_")] = column
    return pairs


def _print_rejected(found: BulkRun) -> None:
    if not found.plan.rejected:
        return
    click.echo(
        f"rows that cannot be painted: {found.plan.rejected} (plan/rejected.jsonl)", err=True
    )
    for wrong, _ in zip(found.rejected(), range(_MAX_LISTED_ROWS), strict=False):
        click.echo(f"  {describe_rejected(wrong)}", err=True)


def _watch(found: BulkRun) -> None:
    try:
        ended = watch(found.statuses(every_s=1.0), Console())
    except KeyboardInterrupt:
        click.echo(
            f"\nThe run goes on. `imagefleet bulk wait {found.id}` shows it again.", err=True
        )
        sys.exit(130)
    if ended.failed_images:
        for failure, _ in zip(found.failures(), range(_MAX_LISTED_ROWS), strict=False):
            click.echo(f"  row {failure.row}: {failure.code}: {failure.message}", err=True)
    sys.exit(0 if ended.state is State.SUCCEEDED else 1)


def _sum(report: VerifyReport) -> str:
    found = (
        f"{report.present} of {report.planned} pictures in {report.shards} shards, "
        f"{report.failed} failed"
    )
    if report.regenerated:
        found += (
            f"; {report.regenerated} painted again, at most {report.max_difference} of 255 "
            "levels apart"
        )
    return found


def _table(report: VerifyReport) -> Table:
    table = Table("shard", "what", "samples", "detail")
    for problem in report.problems:
        samples = str(problem.samples) if problem.samples else ""
        table.add_row(problem.shard, problem.what, samples, problem.detail)
    if report.clean:
        table.add_row("all", "as planned", str(report.present), "")
    return table
