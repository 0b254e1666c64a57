"""`imagefleet dead-letters`: list, show, redrive and drop the messages that the fleet gave up."""

import json
from collections.abc import Sequence
from functools import partial

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.commands.client_command import client_command, iso_time
from imagefleet.producer.commands.each import exit_with
from imagefleet.producer.commands.output import (
    echo,
    echo_fields,
    echo_json,
    json_option,
    limit_option,
    note_none,
)
from imagefleet.producer.fleet.redrive import redrive as redrive_letter
from imagefleet.shared.errors import ImagefleetError, MessageRejected, UnknownJob
from imagefleet.shared.jobs.dead_letters import DeadLetter


@click.group("dead-letters")
def dead_letters() -> None:
    """Inspect the messages that the fleet gave up.

    A dead letter is a message that could not be read, whose workers died too often, or whose job
    failed after all retries. A job that was refused for its parameters leaves none: its status says
    why. IDS are ids of dead letters or of their jobs.
    """


@client_command
@limit_option
@json_option("Print whole letters, one JSON object per line.")
def list_letters(client: Client, limit: int, as_json: bool) -> None:
    """List dead letters, the latest first.

    Columns: id, job, time, deliveries, error code, worker, reason.
    """
    letters = client.dead_letters.read(limit)
    if not letters:
        note_none("dead letters")
    for letter in letters:
        if as_json:
            echo_json(letter.model_dump_json())
        else:
            echo(_format_line(letter))


@client_command
@click.argument("ids", nargs=-1, required=True)
@json_option()
def show(client: Client, ids: tuple[str, ...], as_json: bool) -> None:
    """Print whole letters as JSON, indented without --json.

    `message` is the message as it was in the queue, `arguments` its decoded task arguments.
    """
    letters, missing = _lookup(client, ids)
    for letter in letters:
        echo_json(_to_json(letter, indent=None if as_json else 2))
    exit_with(missing)


@client_command
@click.argument("ids", nargs=-1, required=True)
@json_option()
def redrive(client: Client, ids: tuple[str, ...], as_json: bool) -> None:
    """Send messages through the fleet once more.

    A failed job becomes queued again; its deliveries and retries count from zero.
    """
    letters, errors = _lookup(client, ids)
    for letter in letters:
        try:
            redriven, note = redrive_letter(client.dead_letters, letter)
        except (UnknownJob, MessageRejected) as error:
            errors.append(error)  # somebody else has redriven or dropped it, or has its id
            continue
        fields: dict[str, object] = {"id": letter.id, "job_id": letter.job_id or "-"}
        if as_json:
            fields = {"id": letter.id, "job_id": letter.job_id, "redriven": redriven}
        echo_fields({**fields, "note": note}, as_json=as_json)
    exit_with(errors)


@client_command
@click.argument("ids", nargs=-1, required=True)
@json_option()
def drop(client: Client, ids: tuple[str, ...], as_json: bool) -> None:
    """Delete dead letters. The records of their jobs stay."""
    letters, missing = _lookup(client, ids)
    for letter in letters:
        client.dead_letters.drop(letter)
        echo_fields({"id": letter.id, "note": "dropped"}, as_json=as_json)
    exit_with(missing)


for name, command in (
    ("list", list_letters),
    ("show", show),
    ("redrive", redrive),
    ("drop", drop),
):
    dead_letters.add_command(command, name)


def _lookup(client: Client, names: Sequence[str]) -> tuple[list[DeadLetter], list[ImagefleetError]]:
    """Return the letters of these ids, and the errors for those that have none."""
    answers = client.dead_letters.lookup(names)
    letters = [each for each in answers if isinstance(each, DeadLetter)]
    return letters, [each for each in answers if not isinstance(each, DeadLetter)]


def _to_json(letter: DeadLetter, *, indent: int | None) -> str:
    dump = partial(json.dumps, indent=indent, ensure_ascii=False)
    fields = letter.model_dump()
    try:
        text = dump({**fields, "arguments": letter.arguments})
    except RecursionError:  # the sender may nest the arguments without limit
        text = dump({**fields, "arguments": None})
    return text.encode(errors="backslashreplace").decode()  # JSON may hold half a character, \ud800


def _format_line(letter: DeadLetter) -> str:
    parts = [letter.id, letter.job_id or "-", iso_time(letter.at), f"x{letter.deliveries}"]
    return "  ".join([*parts, letter.code, letter.worker or "-", letter.reason[:200]])
