"""Submit, watch, wait, withdraw: every command parses, calls the client, prints."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from imagefleet.producer.client import CHUNK, Client, Job, outcome
from imagefleet.producer.commands.connection import connected
from imagefleet.shared.errors import ImagefleetError, InvalidRequest, ResultTimeout, UnknownJob
from imagefleet.shared.jobs.model import (
    DEFAULT_CALLBACK_EVENTS,
    CallbackEvent,
    ImageFormat,
    JobRequest,
    JobStatus,
    State,
)

_SECONDS: Final = click.FloatRange(min=0)


@connected
@click.argument("prompts", nargs=-1, required=True)
@click.option("--id", "job_id", help="Your own id; with it a resend is the same job.")
@click.option("--negative-prompt", default="")
@click.option("--height", type=int)
@click.option("--width", type=int)
@click.option("--num-inference-steps", type=int)
@click.option("--guidance-scale", type=float)
@click.option("--num-images-per-prompt", type=int, default=1, show_default=True)
@click.option("--seed", type=int, help="Default: drawn at random, and recorded.")
@click.option("--image", help="Picture to start from: an address, or a stored object's key.")
@click.option("--mask-image", help="Where to paint (white) and what to keep (black) of it.")
@click.option("--strength", type=float, help="How far to leave the image, above 0 to 1.")
@click.option("--preview", is_flag=True, help="Show in the status what is painted so far.")
@click.option("--scheduler")
@click.option("--model")
@click.option("--format", type=click.Choice([f.value for f in ImageFormat]), default="png")
@click.option("--priority", type=int, default=3, show_default=True, help="0 (first) to 9.")
@click.option("--tenant", help="On whose behalf; tenants take turns.")
@click.option("--callback-url")
@click.option(
    "--callback-event",
    "callback_events",
    multiple=True,
    type=click.Choice([event.value for event in CallbackEvent]),
    default=[event.value for event in DEFAULT_CALLBACK_EVENTS],
    show_default=True,
)
@click.option("--wait/--no-wait", default=False, help="Wait and print where the pictures are.")
@click.option("--timeout", type=_SECONDS, help="Seconds to --wait at most.")
def submit(
    client: Client,
    prompts: tuple[str, ...],
    job_id: str | None,
    wait: bool,
    timeout: float | None,
    **parameters: Any,
) -> None:
    """Queue PROMPTS. `-` reads one prompt a line from standard input. Prints the job ids."""
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is for --wait")
    given = {name: value for name, value in parameters.items() if value is not None}
    texts = list(_texts(prompts, given))
    if job_id is not None:
        if len(texts) != 1:
            raise click.UsageError("--id names one job, so give one prompt")
        given["id"] = job_id
    accepted = _accept(client, texts, given)
    if wait:
        jobs = _all_of(accepted)
        for job in jobs:  # a random id is not lost to Ctrl-C
            click.echo(f"{job.id}  accepted", err=True)
        sys.exit(_wait(client, jobs, timeout))
    for job in accepted:
        click.echo(job.id)


@connected
@click.argument("job_ids", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Whole records, one JSON object a line.")
def status(client: Client, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Where jobs stand."""
    statuses = client.statuses(job_ids)
    for found in statuses:
        click.echo(found.model_dump_json() if as_json else _line(found))
    _name_unknown(job_ids, statuses)


@connected
@click.argument("job_ids", nargs=-1, required=True)
@click.option("--timeout", type=_SECONDS, help="Seconds to wait at most.")
def wait(client: Client, job_ids: tuple[str, ...], timeout: float | None) -> None:
    """Wait until jobs end; print where their pictures are. Exit code 1 if any did not succeed."""
    statuses = client.statuses(job_ids)
    worst = _wait(client, [Job(id=found.id, client=client) for found in statuses], timeout)
    _name_unknown(job_ids, statuses)
    sys.exit(worst)


@connected
@click.argument("job_ids", nargs=-1, required=True)
def cancel(client: Client, job_ids: tuple[str, ...]) -> None:
    """Withdraw jobs: queued ones at once, running ones between two steps."""
    unknown = []
    for job_id in job_ids:
        try:
            state = client.cancel(job_id)
        except UnknownJob as error:
            unknown.append(error)  # the others are withdrawn all the same
            continue
        note = "running, stops between steps" if state is State.RUNNING else str(state)
        click.echo(f"{job_id}  {note}")
    _tell(unknown)


def _texts(prompts: Iterable[str], given: Mapping[str, Any]) -> Iterator[str]:
    """The prompts, those from standard input checked: nothing is submitted if a line is wrong."""
    for prompt in prompts:
        if prompt == "-":
            yield from _lines(given)
        else:
            yield prompt


def _lines(given: Mapping[str, Any]) -> Iterator[str]:
    lines = [(at, line.rstrip("\r\n")) for at, line in enumerate(sys.stdin, 1) if line.strip()]
    if not lines:
        raise InvalidRequest("-", "", "standard input holds no prompt")
    for at, line in lines:
        try:
            JobRequest.parse({**given, "prompt": line})
        except InvalidRequest as error:
            raise InvalidRequest(f"line {at}: {error.field}", error.value, error.limit) from None
        yield line


def _accept(client: Client, texts: Sequence[str], given: Mapping[str, Any]) -> Iterator[Job]:
    """Chunk by chunk: the ids of one are printed before the next can be refused."""
    for at in range(0, len(texts), CHUNK):
        yield from client.submit_many(texts[at : at + CHUNK], **given)


def _all_of(accepted: Iterator[Job]) -> list[Job]:
    """To wait for. If some are refused, or at Ctrl-C, the others' ids are printed: nobody waits for
    them."""
    jobs: list[Job] = []
    try:
        for job in accepted:
            jobs.append(job)
    except (ImagefleetError, KeyboardInterrupt):
        for job in jobs:
            click.echo(job.id)
        raise
    return jobs


def _name_unknown(job_ids: Sequence[str], known: Sequence[JobStatus]) -> None:
    found = {status.id for status in known}
    missing = dict.fromkeys(job_id for job_id in job_ids if job_id not in found)
    _tell(
        [
            UnknownJob(f"no job {job_id!r} here: never submitted, or its record expired")
            for job_id in missing
        ]
    )


def _tell(errors: Sequence[ImagefleetError]) -> None:
    """After all the rest has been done: what could not be. Ends the command."""
    for error in errors:
        click.echo(f"imagefleet: {error}", err=True)
    if errors:
        sys.exit(1)


def _wait(client: Client, jobs: list[Job], timeout: float | None) -> int:
    """The exit code: 1 if any did not succeed."""
    worst = 0
    _warn_if_no_worker(client, jobs)
    for job in _ended(client, jobs, timeout):
        try:
            for image in outcome(job.status()).images:
                click.echo(f"{job.id}  {image.url}")
        except ImagefleetError as error:
            click.echo(f"{job.id}  {error}", err=True)
            worst = 1
    return worst


def _warn_if_no_worker(client: Client, jobs: Sequence[Job]) -> None:
    asked = {job.id: job for job in jobs}
    ended = {job.id for job in client.ended(dict(asked))}
    if asked.keys() - ended:
        client.connection.warn_if_no_worker()


def _ended(client: Client, jobs: list[Job], timeout: float | None) -> Iterator[Job]:
    """As they end; at a timeout the ids that are left, so that one can wait again."""
    left = [job.id for job in jobs]
    try:
        for job in client.as_completed(jobs, timeout=timeout):
            left.remove(job.id)
            yield job
    except ResultTimeout:
        for job_id in left:
            click.echo(f"{job_id}  not done yet")
        raise


def _line(found: JobStatus) -> str:
    parts = [found.id, str(found.state)]
    if found.state is State.RUNNING and found.steps:
        parts.append(f"step {found.step}/{found.steps}")
    if found.result is not None:
        parts += [image.url for image in found.result.images]
    if found.error is not None:
        parts.append(json.dumps(found.error.message))
    return "  ".join(parts)
