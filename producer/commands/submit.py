"""Define `imagefleet submit`: read prompts, submit one job for each, and perhaps wait."""

import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click

from imagefleet.producer.bulk.text_files import decoded, error_about_text, without_mark
from imagefleet.producer.client.client import Client
from imagefleet.producer.client.job import Job
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.output import echo, echo_fields, json_option
from imagefleet.producer.commands.parameter_options import parameter_options
from imagefleet.producer.commands.waiting import FOLDER, SECONDS, make_folder, wait_for_jobs
from imagefleet.producer.connection.input_images import INPUT_FIELDS, NOT_YET_UPLOADED
from imagefleet.shared.errors import ImagefleetError, InvalidRequest
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS
from imagefleet.shared.jobs.request import JobRequest


@client_command
@click.argument("prompts", nargs=-1, required=True)
@click.option("--id", "job_id", help="Your own job id; repeating the command with it is safe.")
@parameter_options(name for name in PARAMETERS if name != "prompt")
@click.option(
    "--wait/--no-wait", default=False, help="Wait, and print the addresses of the images."
)
@click.option("--out", type=FOLDER, help="With --wait: save the images in this folder.")
@click.option("--timeout", type=SECONDS, help="With --wait: wait at most this many seconds.")
@json_option("Print a JSON object for each job; with --wait its whole status.")
def submit(
    client: Client,
    prompts: tuple[str, ...],
    job_id: str | None,
    wait: bool,
    timeout: float | None,
    out: Path | None,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Submit one job per prompt and print the job ids.

    `-` reads prompts from standard input, one per line.
    """
    if (timeout is not None or out is not None) and not wait:
        raise click.UsageError(f"--{'timeout' if out is None else 'out'} needs --wait")
    make_folder(out)
    given = {name: value for name, value in parameters.items() if value is not None}
    texts = list(_read_prompts(prompts, given))
    if job_id is not None and len(texts) != 1:
        raise click.UsageError("--id names one job, so give exactly one prompt")
    submitted = _submit(client, texts, job_id, given)
    if wait:
        jobs = _collect(submitted, as_json=as_json)
        for job in jobs:  # so that Ctrl-C does not lose a random id
            echo(f"{job.id}  accepted", err=True)
        sys.exit(wait_for_jobs(client, jobs, timeout, out, as_json=as_json))
    for job in submitted:
        echo_fields({"id": job.id}, as_json=as_json)


def _read_prompts(prompts: Iterable[str], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the prompts. Check all lines of standard input, so that a wrong one submits nothing."""
    for prompt in prompts:
        if prompt == "-":
            yield from _read_stdin(given)
        else:
            yield prompt


def _read_stdin(given: Mapping[str, Any]) -> Iterator[str]:
    with error_about_text("-"):
        file = decoded(cast(io.BufferedReader, sys.stdin.buffer), "-", any_line_end=True)
        texts = [without_mark(line).rstrip("\r\n") for line in file]
        file.detach()  # standard input stays open
    lines = [(number, text) for number, text in enumerate(texts, 1) if text.strip()]
    if not lines:
        raise InvalidRequest("prompt", "-", "standard input holds no prompt")
    for number, line in lines:
        try:
            JobRequest.parse({**_checkable(given), "prompt": line})
        except InvalidRequest as error:
            raise InvalidRequest(
                f"line {number}: {error.field}", error.value, error.limit
            ) from None
        yield line


def _checkable(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with an address for each file that is not uploaded yet."""
    files = [name for name in INPUT_FIELDS if not isinstance(given.get(name, ""), str)]
    return {**given, **dict.fromkeys(files, NOT_YET_UPLOADED)}


def _submit(
    client: Client, texts: Sequence[str], job_id: str | None, given: Mapping[str, Any]
) -> Iterator[Job]:
    """Submit part by part, so that ids are printed before a later part is refused."""
    entries = [{"prompt": text, "id": job_id} for text in texts]
    for jobs in client.submit_in_parts(entries, given, several=len(texts) > 1):
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
