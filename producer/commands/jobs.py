"""Define `imagefleet status`, `wait`, `get`, `cancel`, `delete` and `resend`.

Each command parses its arguments, calls the client and prints the answer.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.client.job import Job
from imagefleet.producer.commands.cancelled import describe_cancelled, is_too_late
from imagefleet.producer.commands.client_command import client_command, iso_time
from imagefleet.producer.commands.each import exit_with, for_each
from imagefleet.producer.commands.output import echo, echo_fields, echo_json, json_option
from imagefleet.producer.commands.waiting import (
    FOLDER,
    SECONDS,
    make_folder,
    save_images,
    wait_for_jobs,
)
from imagefleet.shared.errors import (
    ImagefleetError,
    UnknownJob,
    UnreadableRecord,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.status import JobStatus


@client_command
@click.argument("job_ids", nargs=-1, required=True)
@json_option("Print whole records, one JSON object per line.")
def status(client: Client, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Print the state of jobs, their progress, images or error."""
    answers = client.lookup(job_ids)
    for each in answers:
        if isinstance(each, JobStatus):
            if as_json:
                echo_json(each.model_dump_json())
            else:
                echo(_format_status(each))
    exit_with(_errors_in(answers))


@client_command
@click.argument("job_ids", nargs=-1, required=True)
@click.option("--timeout", type=SECONDS, help="Wait at most this many seconds.")
@click.option("--out", type=FOLDER, help="Save the images in this folder, and print their paths.")
@json_option("Print whole records as the jobs end, one JSON object per line.")
def wait(
    client: Client,
    job_ids: tuple[str, ...],
    timeout: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Wait until jobs end and print their images.

    One line per image: job id and address. The exit code is 1 if any job did not succeed.
    """
    make_folder(out)
    answers = client.lookup(job_ids)
    jobs = [Job(id=each.id, client=client) for each in answers if isinstance(each, JobStatus)]
    exit_code = wait_for_jobs(client, jobs, timeout, out, as_json=as_json)
    exit_with(_errors_in(answers))
    sys.exit(exit_code)


@client_command
@click.argument("job_ids", nargs=-1, required=True)
@click.option(
    "--out",
    type=FOLDER,
    default=Path(),
    help="Folder to save the images in. Default: the current folder.",
)
@json_option()
def get(client: Client, job_ids: tuple[str, ...], out: Path, as_json: bool) -> None:
    """Save the images of jobs that succeeded, and print their paths.

    One line per image: job id and path. The exit code is 1 if any job has no images, or not yet.
    """
    make_folder(out)
    errors: list[ImagefleetError] = []
    for each in client.lookup(job_ids):
        try:
            if not isinstance(each, JobStatus):
                raise each
            for path in save_images(each, out):
                echo_fields({"id": each.id, "path": path}, as_json=as_json)
        except ImagefleetError as error:
            errors.append(error)
    exit_with(errors)


@client_command
@click.argument("job_ids", nargs=-1, required=True)
@json_option()
def cancel(client: Client, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel jobs.

    A queued job is cancelled at once, a running one between two steps. The exit code is 1 if any
    job had succeeded or failed before.
    """
    states: list[State] = []

    def cancel_one(job_id: str) -> Mapping[str, object]:
        states.append(state := client.cancel(job_id))
        return {"state": state if as_json else describe_cancelled(state)}

    for_each(job_ids, cancel_one, as_json=as_json)
    sys.exit(int(any(map(is_too_late, states))))


@client_command
@click.argument("job_ids", nargs=-1, required=True)
@json_option()
def delete(client: Client, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Delete jobs that have ended, and their images and metadata.

    Images that they started from stay.
    """

    def delete_one(job_id: str) -> Mapping[str, object]:
        client.delete(job_id)
        return {"deleted": True} if as_json else {"note": "deleted"}

    for_each(job_ids, delete_one, as_json=as_json)


@client_command
@click.argument("job_ids", nargs=-1, required=True)
@json_option()
def resend(client: Client, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Send the messages of queued jobs again that have none.

    `celery purge` deletes messages and leaves the records of their jobs.
    """

    def resend_one(job_id: str) -> Mapping[str, object]:
        resent = client.resend(job_id)
        if as_json:
            return {"resent": resent}
        return {"note": "queued again" if resent else "has a message, or is not queued"}

    for_each(job_ids, resend_one, as_json=as_json)


def _errors_in(
    answers: Iterable[JobStatus | UnknownJob | UnreadableRecord],
) -> list[ImagefleetError]:
    """Return the errors among `answers`, each once."""
    errors = {str(each): each for each in answers if not isinstance(each, JobStatus)}
    return list(errors.values())


def _format_status(status: JobStatus) -> str:
    parts = [status.id, str(status.state)]
    if status.state is State.RUNNING and status.steps:
        parts.append(f"step {status.step}/{status.steps}")
    if status.images_deleted_at is not None:
        parts.append(f"images deleted at {iso_time(status.images_deleted_at)}")
    elif status.result is not None:
        parts += [image.url for image in status.result.images]
    if status.error is not None:
        parts += [status.error.code, json.dumps(status.error.message)]
    if status.worker is not None and status.state in (State.RUNNING, State.FAILED):
        parts.append(f"on {status.worker}")
    return "  ".join(parts)
