"""`imagefleet workers`: list workers and drain them."""

import time
from typing import Final

import click

from imagefleet.producer.client import Client
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.output import echo, echo_fields, json_option, note_none
from imagefleet.shared.errors import InvalidRequest

_POLL_S: Final = 0.5


@click.group()
def workers() -> None:
    """List workers and drain them."""


@client_command
@json_option()
def list_workers(client: Client, as_json: bool) -> None:
    """List the workers that hold a lease: name, state, model."""
    found = client.fleet.workers.statuses()
    if not found:
        note_none("workers")
    for each in found:
        echo_fields(
            {"worker": each.worker, "state": each.state, "model": each.model}, as_json=as_json
        )


@client_command
@click.argument("names", nargs=-1, required=True)
@click.option("--wait", is_flag=True, help="Wait until they have ended.")
def drain(client: Client, names: tuple[str, ...], wait: bool) -> None:
    """Let workers finish what is on their devices, requeue the rest and end.

    NAMES are those of `imagefleet workers list`. A worker reads the request at its next heartbeat,
    within a quarter of its lease, and then does what it does at SIGTERM.
    """
    alive = {each.worker for each in client.fleet.workers.statuses()}
    for name in names:
        if name not in alive:
            raise InvalidRequest("NAMES", name, "is no worker; see `imagefleet workers list`")
    client.fleet.workers.request_drain(names)
    while wait and alive.intersection(names):
        time.sleep(_POLL_S)
        alive = {each.worker for each in client.fleet.workers.statuses()}
    for name in names:
        echo(f"{name}  {'ended' if wait else 'draining'}")


list_workers.name = "list"
workers.add_command(list_workers)
workers.add_command(drain)
