"""The commands of `imagefleet bulk` start, watch, stop, verify and repair bulk runs."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from operator import attrgetter

import click
from rich.table import Table

from imagefleet.producer.bulk.progress_view import Rates, line, render
from imagefleet.producer.bulk.repair import is_repaired
from imagefleet.producer.bulk.verify_report import VerifyReport
from imagefleet.producer.client.client import Client
from imagefleet.producer.commands.bulk_output import watch_run
from imagefleet.producer.commands.bulk_run import run
from imagefleet.producer.commands.cancelled import describe_cancelled, is_too_late
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.notify_command import NotifyCommand, notify_options, watched_by
from imagefleet.producer.commands.output import (
    cell,
    echo,
    echo_fields,
    echo_json,
    json_option,
    make_console,
    note_none,
)
from imagefleet.producer.commands.waiting import SECONDS
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.errors import UnknownRun, UnreadableRecord
from imagefleet.shared.jobs.model import State
from imagefleet.shared.text.printable import counted


@click.group()
def bulk() -> None:
    """Generate whole datasets from files of prompts.

    RUN is the destination or the id of a run.
    """


@client_command
@click.argument("name", metavar="[RUN]", required=False)
@json_option("Print one JSON object per run.")
def status(client: Client, name: str | None, as_json: bool) -> None:
    """Show the status of RUN, or one line for each run that Redis has a record of, the latest
    first."""
    if name:
        statuses = [client.find_bulk(name).status()]
    else:
        statuses = sorted(_all_statuses(client), key=attrgetter("started_at"), reverse=True)
    if not statuses:
        note_none("bulk runs")
    for each in statuses:
        if as_json:
            echo_json(each.model_dump_json())
        elif name:
            make_console().print(render(each, Rates(0.0, each)))
        else:
            echo(line(each))
    if not all(each.done for each in statuses):
        client.connection.warn_if_no_worker()


@client_command
@click.argument("name", metavar="RUN")
@click.option("--timeout", type=SECONDS, help="Maximum seconds to wait, without a progress view.")
@notify_options
@json_option("Print the last status as one JSON object, and no progress.")
def wait(
    client: Client,
    name: str,
    timeout: float | None,
    notify_command: NotifyCommand | None,
    stalled_after: float,
    as_json: bool,
) -> None:
    """Show the progress of a run until it ends.

    The exit code is 1 if it does not succeed, and 3 if it does and rows were rejected or images
    failed, whatever becomes of --notify-command.
    """
    bulk_run = client.find_bulk(name)
    watched = watched_by(notify_command, bulk_run, stalled_after)
    watch_run(bulk_run, as_json=as_json, timeout=timeout, watched=watched)


@client_command
@click.argument("name", metavar="RUN")
@json_option("Print one JSON object.")
def cancel(client: Client, name: str, as_json: bool) -> None:
    """Stop a run between two batches. Finished images stay, and `bulk run` resumes the run.

    The exit code is 1 if the run had succeeded or failed before.
    """
    state = _cancelled(client, name)
    shown = state if as_json else describe_cancelled(state)
    echo_fields({"run": name, "state": shown}, as_json=as_json)
    sys.exit(int(is_too_late(state)))


@client_command
@click.argument("name", metavar="RUN")
@json_option("Print one JSON object.")
def retry_failed(client: Client, name: str, as_json: bool) -> None:
    """Generate failed rows again."""
    shards = client.find_bulk(name).retry_failed()
    if as_json:
        echo_fields({"run": name, "shards_sent_again": shards}, as_json=True)
    else:
        echo(f"{counted(shards, 'shard')} sent again")


@client_command
@click.argument("name", metavar="RUN")
@click.option("--sample", type=click.IntRange(min=0), default=0, help="Rows to generate again.")
@click.option("--repair", is_flag=True, help="Generate damaged shards again.")
@json_option("Print the whole report as one JSON object.")
def verify(client: Client, name: str, sample: int, repair: bool, as_json: bool) -> None:
    """Check every file against the plan. The exit code is 1 if there is a problem.

    With --repair it is 0 if the shards that are made again have all the problems. Unplanned files
    are not deleted, also not by --repair. Delete them yourself.
    """
    bulk_run = client.find_bulk(name)
    report = bulk_run.verify(sample=sample)
    sent = bulk_run.repair(report) if repair and not report.clean else 0
    exit_code = int(not (report.clean or (repair and is_repaired(report))))
    if as_json:
        echo_fields({**asdict(report), "shards_sent_again": sent}, as_json=True)
        sys.exit(exit_code)
    echo(_summary(report))
    make_console().print(_problem_table(report))
    if repair and not report.clean:
        echo(f"{counted(sent, 'shard')} sent again; `imagefleet bulk wait` shows their progress")
    if report.unplanned_files:
        echo(
            f"{counted(report.unplanned_files, 'unplanned file')}: not in the plan, and imagefleet "
            "deletes no such files. Delete them, or `verify` reports them again."
        )
    sys.exit(exit_code)


for command in (run, status, wait, cancel, verify, retry_failed):
    bulk.add_command(command)


def _cancelled(client: Client, name: str) -> State:
    """Cancel a run and return its state. Its id suffices: its destination may hold another run's
    plan now, or none."""
    with suppress(UnknownRun), client.connection.runs(name) as runs:
        return runs.cancel(name)
    return client.find_bulk(name).cancel()


def _all_statuses(client: Client) -> Iterator[RunStatus]:
    """Yield the statuses of all runs whose records have not expired. Name damaged ones."""
    with client.connection.runs_by_lane() as runs:
        run_ids = runs.ids()
    for run_id in run_ids:
        try:
            with client.connection.runs(run_id) as records:
                yield records.get(run_id)
        except UnknownRun:
            continue
        except UnreadableRecord as error:
            echo(str(error), err=True)


def _summary(report: VerifyReport) -> str:
    problems = counted(len(report.problems), "problem")
    text = (
        f"{'as planned' if report.clean else f'not as planned, {problems}'}: {report.present:,} of "
        f"{counted(report.planned, 'image')} in {counted(report.shards, 'shard')}, "
        f"{report.failed:,} failed"
    )
    if report.regenerated_rows:
        text += (
            f"; {counted(report.regenerated_rows, 'row')} with "
            f"{counted(report.regenerated, 'image')} generated again, with a difference of at most "
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
