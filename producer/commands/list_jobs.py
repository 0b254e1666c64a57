"""Define `imagefleet jobs`: list the jobs of a fleet."""

import shutil
import time
from contextlib import suppress
from datetime import UTC, datetime
from heapq import nlargest
from typing import Final

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.commands.client_command import client_command, iso_time
from imagefleet.producer.commands.output import (
    echo,
    echo_json,
    json_option,
    limit_option,
    note_none,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.text.durations import seconds_in
from imagefleet.shared.text.printable import counted, printable

_MIN_PROMPT: Final = 20
"""Characters of the prompt that are shown on a narrow terminal too."""

_MIN_REASON: Final = 200
"""So many characters of a failed job's code and reason are shown there too."""


def _parse_since(text: str) -> float:
    """Return Unix seconds."""
    with suppress(ValueError):
        return time.time() - seconds_in(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither an age, as in 30m, 2h or 7d, nor a time, as in 2026-01-31T12:00"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


@client_command
@click.option(
    "--state", type=click.Choice([state.value for state in State]), help="Only jobs in this state."
)
@click.option("--tenant", help="Only jobs of this tenant; '' for jobs without one.")
@click.option(
    "--since",
    type=_parse_since,
    metavar="TIME",
    help="Only jobs submitted since then: an age (30m, 2h, 7d), or an ISO time (UTC unless it "
    "names an offset).",
)
@limit_option
@json_option("Print whole records, one JSON object per line.")
def jobs(
    client: Client,
    state: str | None,
    tenant: str | None,
    since: float | None,
    limit: int,
    as_json: bool,
) -> None:
    """List jobs, the latest first.

    Columns: id, state, time of submission, tenant, worker, prompt. A failed job shows the code and
    the reason of its failure in the place of its prompt. There is no index of jobs, so the command
    reads all records, page by page.
    """
    found = 0

    def newest_first(status: JobStatus) -> tuple[float, str]:
        nonlocal found
        found += 1
        return status.submitted_at, status.id

    listed = nlargest(limit, client.jobs(state=state, tenant=tenant, since=since), newest_first)
    if not listed:
        note_none("jobs")
    for status in listed:
        if as_json:
            echo_json(status.model_dump_json())
        else:
            echo(_format_line(status))
    if found > limit:
        echo(f"{counted(found - limit, 'older job')} not listed; raise --limit", err=True)


def _format_line(status: JobStatus) -> str:
    columns = [status.id, status.state, iso_time(status.submitted_at)]
    columns += [status.request.tenant or "-", status.worker or "-"]
    line = "  ".join(columns)
    width = shutil.get_terminal_size().columns - len(line) - 2
    if (error := status.error) is not None:
        text = f"{error.code}: {error.message}"
        return f"{line}  {printable(text, max(_MIN_REASON, width))}"
    return f"{line}  {printable(status.request.prompt, max(_MIN_PROMPT, width))}"
