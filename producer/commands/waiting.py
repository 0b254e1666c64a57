"""Wait for jobs in a command, and print or save their images as the jobs end."""

import json
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.client.job import Job, Polling, result_or_raise
from imagefleet.producer.commands.output import echo, echo_fields, echo_json
from imagefleet.producer.connection.outages import OutageTolerance
from imagefleet.shared.errors import ImagefleetError, ResultTimeout, StorageDenied
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.text.printable import mask_url

SECONDS: Final = click.FloatRange(min=0)
_MAX_NAMED_JOBS: Final = 5
"""Maximum jobs whose ids are in the command that waits again. All ids are printed before."""
FOLDER: Final = click.Path(file_okay=False, path_type=Path)


def make_folder(out: Path | None) -> None:
    """Make the folder of `--out` before anything is submitted. Raise StorageDenied."""
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageDenied(f"--out {out}: {error.strerror}") from None


def wait_for_jobs(
    client: Client, jobs: list[Job], timeout: float | None, out: Path | None, *, as_json: bool
) -> int:
    """Wait and print images and errors. Return the exit code: 1 if any job did not succeed.

    Args:
        out: a folder to save the images in.
    """
    exit_code = 0
    outages = OutageTolerance()
    waiting = {job.id: job for job in jobs}
    left = dict(waiting)  # a job stays here until its images are printed, also at Ctrl-C
    with _say_how_to_look_again(left, waiting, as_json=as_json):
        for job in client.await_jobs(waiting, Polling(waiting, timeout, outages)):
            status, places = None, []
            try:
                status = outages.await_answer(job.status)
                # Redis tells in which store the images lie.
                places = outages.await_answer(partial(save_images, status, out))
            except ImagefleetError as error:
                echo(f"{job.id}  {error}", err=True)
                exit_code = 1
            _print_ended(status, places, out, as_json=as_json)
            del left[job.id]
    return exit_code


def _print_ended(
    status: JobStatus | None, places: Sequence[str], out: Path | None, *, as_json: bool
) -> None:
    """Print where the images of a job lie, or as JSON its record, with the `paths` of saved images.

    Args:
        status: None if there is no record.
    """
    if status is not None and as_json:
        paths = {} if out is None else {"paths": places}
        echo_json(json.dumps(status.model_dump(mode="json") | paths, ensure_ascii=False))
    elif status is not None:
        for place in places:
            echo(f"{status.id}  {place}")


def save_images(status: JobStatus, out: Path | None) -> list[str]:
    """Save the images of a job in `out`, and return their paths; without `out` their addresses.

    Raises:
        ImagefleetError: the job has no result, or an image cannot be read or saved.
    """
    result = result_or_raise(status)
    if out is None:
        return [image.url for image in result.images]
    try:
        return [str(path) for path in result.save(out)]
    except ImagefleetError:
        raise  # that the store or Redis does not answer is an OSError too
    except OSError as error:
        raise StorageDenied(f"cannot save in {out}: {error.strerror}") from None


@contextmanager
def _say_how_to_look_again(
    left: Collection[str], waiting: Collection[str], *, as_json: bool
) -> Iterator[None]:
    """At a timeout or Ctrl-C, print the ids in `left`, and the commands that look at them again.

    Those that are not in `waiting` have ended.
    """
    try:
        yield
    except (ResultTimeout, KeyboardInterrupt) as ended:
        for job_id in left:
            done = job_id not in waiting
            note = "done, and not printed" if done else "not done yet"
            fields: dict[str, object] = {"done": done} if as_json else {"note": note}
            echo_fields({"id": job_id, **fields}, as_json=as_json)
        if isinstance(ended, ResultTimeout):
            raise ResultTimeout(f"{ended}: {_next_commands(left)}") from None
        echo(f"The fleet continues, so you can wait again: {_next_commands(left)}", err=True)
        raise


def _next_commands(job_ids: Collection[str]) -> str:
    """Return which commands look at jobs again, with the options that found them.

    An address of Redis is left out if it has a password.
    """
    given = click.get_current_context().params
    options = [
        f"{option} {shlex.quote(given[name])} "
        for option, name in (("--redis-url", "redis_url"), ("--namespace", "namespace"))
        if given.get(name) and mask_url(given[name]) == given[name]
    ]
    shown = " ".join(job_ids if len(job_ids) <= _MAX_NAMED_JOBS else ["ID…"])
    words = "".join(options) + shown
    return f"`imagefleet wait {words}`; or look once: `imagefleet status {words}`"
