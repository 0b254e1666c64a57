"""Define `imagefleet submit`: read prompts, submit one job for each, and perhaps wait."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from imagefleet.producer.bulk.job_rows import read_jobs
from imagefleet.producer.bulk.notes import Notes
from imagefleet.producer.bulk.readers import has_file_type
from imagefleet.producer.bulk.text_files import FileOptions
from imagefleet.producer.client.client import Client
from imagefleet.producer.client.job import Job
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.input_options import input_options
from imagefleet.producer.commands.output import echo, echo_fields, json_option
from imagefleet.producer.commands.parameter_options import parameter_options
from imagefleet.producer.commands.waiting import FOLDER, SECONDS, make_folder, wait_for_jobs
from imagefleet.shared.errors import ImagefleetError, InvalidRequest
from imagefleet.shared.jobs.offers import unguided_scale_of
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS


@client_command
@click.argument("prompts", nargs=-1, required=True)
@input_options("prompts, one per line; JSON if it begins with { or [.")
@click.option("--id", "job_id", help="Your own job id; repeating the command with it is safe.")
@parameter_options(name for name in PARAMETERS if name != "prompt")
@click.option(
    "--wait/--no-wait", default=False, help="Wait, and print the addresses of the images."
)
@click.option("--out", type=FOLDER, help="With --wait: save the images in this folder.")
@click.option("--timeout", type=SECONDS, help="With --wait: wait at most this many seconds.")
@json_option("Print a JSON object for each job; with --wait its whole status.")
def submit(  # noqa: PLR0913 - every argument is an option
    client: Client,
    prompts: tuple[str, ...],
    job_id: str | None,
    wait: bool,
    timeout: float | None,
    out: Path | None,
    as_json: bool,
    input_format: str | None,
    delimiter: str | None,
    encoding: str | None,
    ignore_columns: tuple[str, ...],
    **parameters: Any,
) -> None:
    """Submit one job per prompt and print the job ids.

    `-` reads prompts from standard input, one per line, or rows of parameters of the type that
    --input-format names. A column `id` names jobs.
    """
    if (timeout is not None or out is not None) and not wait:
        raise click.UsageError(f"--{'timeout' if out is None else 'out'} needs --wait")
    make_folder(out)
    given = {name: value for name, value in parameters.items() if value is not None}
    options = FileOptions(
        file_type=input_format,
        delimiter=delimiter,
        encoding=encoding,
        any_line_end=True,
        notes=Notes(
            unguided_scale_of(client.offers(), given.get("model")) if "-" in prompts else 1.0
        ),
    )
    entries = list(_read_entries(prompts, given, options, ignore_columns))
    if job_id is not None:
        if len(entries) != 1:
            raise click.UsageError("--id names one job, so give exactly one prompt")
        entries[0]["id"] = job_id
    submitted = _submit(client, entries, given)
    if wait:
        jobs = _collect(submitted, as_json=as_json)
        for job in jobs:  # so that Ctrl-C does not lose a random id
            echo(f"{job.id}  accepted", err=True)
        sys.exit(wait_for_jobs(client, jobs, timeout, out, as_json=as_json))
    for job in submitted:
        echo_fields({"id": job.id}, as_json=as_json)


def _read_entries(
    prompts: Iterable[str], given: Mapping[str, Any], options: FileOptions, ignored: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the parameters of each job. Check all rows of standard input, so that a wrong one
    submits nothing.

    Raises:
        InvalidRequest: a row is wrong, or a prompt is the name of a table in this folder.
    """
    for prompt in prompts:
        if prompt == "-":
            yield from read_jobs(sys.stdin.buffer, "-", options, given, ignored)
            continue
        if has_file_type(prompt, with_json=True) and Path(prompt).is_file():
            limit = (
                "is a file, and a prompt was expected; `imagefleet submit - < FILE` reads the "
                "prompts in it"
            )
            raise InvalidRequest("prompt", prompt, limit)
        yield {"prompt": prompt}


def _submit(
    client: Client, entries: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> Iterator[Job]:
    """Submit part by part, so that ids are printed before a later part is refused."""
    for jobs in client.submit_in_parts(entries, given, several=len(entries) > 1):
        yield from jobs


def _collect(submitted: Iterator[Job], *, as_json: bool) -> list[Job]:
    """Return all submitted jobs. On an error or Ctrl-C, print the ids of those accepted so far."""
    jobs: list[Job] = []
    try:
        for job in submitted:
            jobs.append(job)
    except (ImagefleetError, KeyboardInterrupt):
        for job in jobs:
            echo_fields({"id": job.id}, as_json=as_json)
        raise
    return jobs
