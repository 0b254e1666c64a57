"""Define `imagefleet submit`, `status`, `wait`, `cancel` and `resend`.

Each command parses its arguments, calls the client and prints the answer.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from imagefleet.producer.client import CHUNK, Client
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.output import echo, echo_json
from imagefleet.producer.job import Job, result_or_raise
from imagefleet.shared.errors import (
    ImagefleetError,
    InvalidRequest,
    ResultTimeout,
    UnknownJob,
    UnreadableRecord,
)
from imagefleet.shared.jobs.model import CallbackEvent, ImageFormat, State
from imagefleet.shared.jobs.request import DEFAULT_CALLBACK_EVENTS, JobRequest
from imagefleet.shared.jobs.status import JobStatus

_SECONDS: Final = click.FloatRange(min=0)


@client_command
@click.argument("prompts", nargs=-1, required=True)
@click.option("--id", "job_id", help="Your own job id; repeating the command with it is safe.")
@click.option("--negative-prompt", help="What the image should not show.")
@click.option("--height", type=int, help="Pixels; together with --width. Default: the model's.")
@click.option("--width", type=int, help="Pixels; together with --height.")
@click.option("--num-inference-steps", type=int, help="Denoising steps. Default: the model's.")
@click.option("--guidance-scale", type=float, help="Default: the model's.")
@click.option(
    "--num-images-per-prompt", type=int, default=1, show_default=True, help="Images per job."
)
@click.option("--seed", type=int, help="Default: random; the job's record keeps it.")
@click.option("--image", help="Init image: an http(s) address, or a key of the fleet's store.")
@click.option("--mask-image", help="Mask of the init image: white is replaced, black is kept.")
@click.option(
    "--strength", type=float, help="How much of the init image is replaced: above 0, up to 1."
)
@click.option("--preview", is_flag=True, help="Keep a preview in the job's status while it runs.")
@click.option("--scheduler", help="Default: the model's.")
@click.option("--model", help="Default: the fleet's default model.")
@click.option(
    "--format",
    type=click.Choice([f.value for f in ImageFormat]),
    default="png",
    show_default=True,
    help="Format of the image files.",
)
@click.option("--priority", type=int, default=3, show_default=True, help="0 (first) to 9 (last).")
@click.option("--tenant", help="Tenant of the jobs; tenants take turns.")
@click.option("--callback-url", help="Address that receives a signed webhook for each event.")
@click.option(
    "--callback-event",
    "callback_events",
    multiple=True,
    type=click.Choice([event.value for event in CallbackEvent]),
    default=[event.value for event in DEFAULT_CALLBACK_EVENTS],
    show_default=True,
    help="Event to report; repeat the option for more.",
)
@click.option(
    "--wait/--no-wait", default=False, help="Wait, and print the addresses of the images."
)
@click.option("--timeout", type=_SECONDS, help="With --wait: wait at most this many seconds.")
def submit(
    client: Client,
    prompts: tuple[str, ...],
    job_id: str | None,
    wait: bool,
    timeout: float | None,
    **parameters: Any,
) -> None:
    """Submit one job per prompt and print the job ids.

    `-` reads prompts from standard input, one per line.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait")
    given = {name: value for name, value in parameters.items() if value is not None}
    texts = list(_read_prompts(prompts, given))
    if job_id is not None:
        if len(texts) != 1:
            raise click.UsageError("--id names one job, so give exactly one prompt")
        given["id"] = job_id
    submitted = _submit_chunks(client, texts, given)
    if wait:
        jobs = _collect(submitted)
        for job in jobs:  # so that Ctrl-C does not lose a random id
            echo(f"{job.id}  accepted", err=True)
        sys.exit(_wait(client, jobs, timeout))
    for job in submitted:
        echo(job.id)


@client_command
@click.argument("job_ids", nargs=-1, required=True)
@click.option(
    "--json", "as_json", is_flag=True, help="Print whole records, one JSON object per line."
)
def status(client: Client, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Print the state of jobs, their progress, images or error."""
    answers = client.lookup(job_ids)
    for each in answers:
        if isinstance(each, JobStatus):
            if as_json:
                echo_json(each.model_dump_json())
            else:
                echo(_format_status(each))
    _exit_with(_errors_in(answers))


@client_command
@click.argument("job_ids", nargs=-1, required=True)
@click.option("--timeout", type=_SECONDS, help="Wait at most this many seconds.")
def wait(client: Client, job_ids: tuple[str, ...], timeout: float | None) -> None:
    """Wait until jobs end and print their images.

    One line per image: job id and address. The exit code is 1 if any job did not succeed.
    """
    answers = client.lookup(job_ids)
    jobs = [Job(id=each.id, client=client) for each in answers if isinstance(each, JobStatus)]
    exit_code = _wait(client, jobs, timeout)
    _exit_with(_errors_in(answers))
    sys.exit(exit_code)


@client_command
@click.argument("job_ids", nargs=-1, required=True)
def cancel(client: Client, job_ids: tuple[str, ...]) -> None:
    """Cancel jobs.

    A queued job is cancelled at once, a running one between two steps.
    """
    errors: list[ImagefleetError] = []
    for job_id in job_ids:
        try:
            state = client.cancel(job_id)
        except (UnknownJob, UnreadableRecord) as error:
            errors.append(error)  # the other jobs are cancelled all the same
            continue
        note = "running, stops after the current step" if state is State.RUNNING else str(state)
        echo(f"{job_id}  {note}")
    _exit_with(errors)


@client_command
@click.argument("job_ids", nargs=-1, required=True)
def resend(client: Client, job_ids: tuple[str, ...]) -> None:
    """Queue jobs again that are queued and have no message.

    `celery purge` deletes messages and leaves the records of their jobs.
    """
    errors: list[ImagefleetError] = []
    for job_id in job_ids:
        try:
            note = "queued again" if client.resend(job_id) else "has a message, or is not queued"
        except (UnknownJob, UnreadableRecord) as error:
            errors.append(error)  # the other jobs are sent all the same
            continue
        click.echo(f"{job_id}  {note}")
    _exit_with(errors)


def _read_prompts(prompts: Iterable[str], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the prompts. Check all lines of standard input, so that a wrong one submits nothing."""
    for prompt in prompts:
        if prompt == "-":
            yield from _read_stdin(given)
        else:
            yield prompt


def _read_stdin(given: Mapping[str, Any]) -> Iterator[str]:
    lines = [
        (number, line.rstrip("\r\n")) for number, line in enumerate(sys.stdin, 1) if line.strip()
    ]
    if not lines:
        raise InvalidRequest("-", "", "standard input holds no prompt")
    for number, line in lines:
        try:
            JobRequest.parse({**given, "prompt": line})
        except InvalidRequest as error:
            raise InvalidRequest(
                f"line {number}: {error.field}", error.value, error.limit
            ) from None
        yield line


def _submit_chunks(client: Client, texts: Sequence[str], given: Mapping[str, Any]) -> Iterator[Job]:
    """Submit chunk by chunk, so that ids are printed before a later chunk is refused."""
    for start in range(0, len(texts), CHUNK):
        yield from client.submit_many(texts[start : start + CHUNK], **given)


def _collect(submitted: Iterator[Job]) -> list[Job]:
    """Return all submitted jobs. On an error or Ctrl-C, print the ids of those accepted so far."""
    jobs: list[Job] = []
    try:
        for job in submitted:
            jobs.append(job)
    except (ImagefleetError, KeyboardInterrupt):
        for job in jobs:
            echo(job.id)
        raise
    return jobs


def _errors_in(
    answers: Iterable[JobStatus | UnknownJob | UnreadableRecord],
) -> list[ImagefleetError]:
    """Return the errors among `answers`, each once."""
    errors = {str(each): each for each in answers if not isinstance(each, JobStatus)}
    return list(errors.values())


def _exit_with(errors: Sequence[ImagefleetError]) -> None:
    """Print `errors` and end the command with exit code 1, if there are any."""
    for error in errors:
        echo(f"imagefleet: {error}", err=True)
    if errors:
        sys.exit(1)


def _wait(client: Client, jobs: list[Job], timeout: float | None) -> int:
    """Wait and print images and errors. Return the exit code: 1 if any job did not succeed."""
    exit_code = 0
    _warn_if_no_worker(client, jobs)
    for job in _as_completed(client, jobs, timeout):
        try:
            for image in result_or_raise(job.status()).images:
                echo(f"{job.id}  {image.url}")
        except ImagefleetError as error:
            echo(f"{job.id}  {error}", err=True)
            exit_code = 1
    return exit_code


def _warn_if_no_worker(client: Client, jobs: Sequence[Job]) -> None:
    waiting = {job.id: job for job in jobs}
    for _ in client.pop_ended(waiting):
        pass
    if waiting:
        client.connection.warn_if_no_worker()


def _as_completed(client: Client, jobs: list[Job], timeout: float | None) -> Iterator[Job]:
    """Yield jobs as they end. At a timeout, print the ids of the others for a later `wait`."""
    unfinished = [job.id for job in jobs]
    try:
        for job in client.as_completed(jobs, timeout=timeout):
            unfinished.remove(job.id)
            yield job
    except ResultTimeout:
        for job_id in unfinished:
            echo(f"{job_id}  not done yet")
        raise


def _format_status(status: JobStatus) -> str:
    parts = [status.id, str(status.state)]
    if status.state is State.RUNNING and status.steps:
        parts.append(f"step {status.step}/{status.steps}")
    if status.result is not None:
        parts += [image.url for image in status.result.images]
    if status.error is not None:
        parts.append(json.dumps(status.error.message))
    return "  ".join(parts)
