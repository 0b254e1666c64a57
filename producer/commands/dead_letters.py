"""`imagefleet dead`: messages the fleet gave up, and what to do with them."""

import json

import click

from imagefleet.producer.client import Client
from imagefleet.producer.commands.connection import connected, moment
from imagefleet.shared.jobs.dead_letters import DeadLetter
from imagefleet.shared.jobs.model import State


@click.group()
def dead() -> None:
    """What the fleet gave up: unreadable messages, and jobs that failed in workers' hands.

    IDs are those of the letters or of their jobs.
    """


@connected
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Whole letters, one JSON object a line.")
def list_letters(client: Client, limit: int, as_json: bool) -> None:
    """The latest first: letter, job, when, deliveries, error code, reason."""
    for letter in client.dead_letters.read(limit):
        click.echo(letter.model_dump_json() if as_json else _line(letter))


@connected
@click.argument("ids", nargs=-1, required=True)
def show(client: Client, ids: tuple[str, ...]) -> None:
    """Whole letters as JSON: the message as it was, and as `arguments` what it asked for."""
    for letter in client.dead_letters.find(ids):
        click.echo(_whole(letter))


@connected
@click.argument("ids", nargs=-1, required=True)
def redrive(client: Client, ids: tuple[str, ...]) -> None:
    """Send them through the fleet once more; a failed job is queued again, with fresh counts."""
    for letter in client.dead_letters.find(ids):
        state = client.dead_letters.redrive(letter)
        note = "queued again" if state is State.QUEUED else f"left alone: its job is {state}"
        click.echo(f"{letter.id}  {letter.job_id or '-'}  {note}")


@connected
@click.argument("ids", nargs=-1, required=True)
def drop(client: Client, ids: tuple[str, ...]) -> None:
    """Forget them. Their jobs' records stay as they are."""
    for letter in client.dead_letters.find(ids):
        client.dead_letters.drop(letter)
        click.echo(f"{letter.id}  dropped")


for name, command in (
    ("list", list_letters),
    ("show", show),
    ("redrive", redrive),
    ("drop", drop),
):
    dead.add_command(command, name)


def _whole(letter: DeadLetter) -> str:
    fields = letter.model_dump()
    try:
        text = json.dumps({**fields, "arguments": letter.arguments}, indent=2, ensure_ascii=False)
    except RecursionError:  # whoever sent it can nest it as he likes
        text = json.dumps({**fields, "arguments": None}, indent=2, ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()  # half a character is JSON's \ud800


def _line(letter: DeadLetter) -> str:
    parts = [letter.id, letter.job_id or "-", moment(letter.at), f"x{letter.deliveries}"]
    return "  ".join([*parts, letter.code, letter.reason[:200]])
