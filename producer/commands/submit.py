"""Define `imagefleet submit`: read prompts, submit one job for each, and perhaps wait."""

import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.client.job import Job
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.image_options import image_options, latents_options
from imagefleet.producer.commands.lora_option import lora_option
from imagefleet.producer.commands.output import echo, echo_fields, json_option
from imagefleet.producer.commands.waiting import FOLDER, SECONDS, make_folder, wait_for_jobs
from imagefleet.producer.commands.weighting_option import weighting_option
from imagefleet.producer.connection.input_images import INPUT_FIELDS, NOT_YET_UPLOADED
from imagefleet.shared.errors import ImagefleetError, InvalidRequest
from imagefleet.shared.jobs.model import CallbackEvent, ImageFormat
from imagefleet.shared.jobs.request import DEFAULT_CALLBACK_EVENTS, JobRequest
from imagefleet.shared.text.durations import parse_duration


def _parse_keep(text: str) -> float:
    """Return seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}") from None


def _parse_metadata(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
    if text is None:
        return None
    try:
        metadata = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}") from None
    if not isinstance(metadata, dict):
        raise click.BadParameter("must be a JSON object, as in '{\"shot\": 3}'")
    return metadata


@client_command
@click.argument("prompts", nargs=-1, required=True)
@click.option("--id", "job_id", help="Your own job id; repeating the command with it is safe.")
@click.option("--negative-prompt", help="What the image should not show.")
@click.option("--height", type=int, help="Pixels; together with --width. Default: the model's.")
@click.option("--width", type=int, help="Pixels; together with --height.")
@click.option("--num-inference-steps", type=int, help="Denoising steps. Default: the model's.")
@click.option("--guidance-scale", type=float, help="Default: the model's.")
@click.option("--clip-skip", type=int, help="Last text encoder layers to skip, as diffusers.")
@click.option("--guidance-rescale", type=float, help="Against overexposure, 0 to 1, as diffusers.")
@weighting_option
@click.option(
    "--num-images-per-prompt", type=int, default=1, show_default=True, help="Images per job."
)
@click.option("--seed", type=int, help="Default: random; the job's record keeps it.")
@image_options
@latents_options
@click.option(
    "--denoising-end",
    type=float,
    help="Leave latents after this share of the steps, for another job; above 0, below 1.",
)
@click.option("--preview", is_flag=True, help="Keep a preview in the job's status while it runs.")
@click.option("--scheduler", help="Default: the model's.")
@lora_option
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
    "--ttl", type=float, help="Seconds within which a worker must start the job, else it fails."
)
@click.option(
    "--keep",
    type=_parse_keep,
    metavar="TIME",
    help="How long the images are kept after the job's success, as in 12h or 30d. Default: as the "
    "workers are set; for ever unless the operator chose otherwise.",
)
@click.option(
    "--metadata",
    callback=_parse_metadata,
    help="Your own data as a JSON object, kept in the status, in callbacks and beside the image.",
)
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
    if isinstance(sys.stdin, io.TextIOWrapper):  # other bytes than UTF-8 get an error with a line
        sys.stdin.reconfigure(errors="surrogateescape")
    lines = [
        (number, line.rstrip("\r\n")) for number, line in enumerate(sys.stdin, 1) if line.strip()
    ]
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
