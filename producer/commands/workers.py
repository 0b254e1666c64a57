"""`imagefleet workers`: list workers and drain them."""

import math
import sys
import time
from collections.abc import Collection
from typing import Final

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.output import echo_fields, json_option, note_none
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.worker_status import WorkerState

_POLL_S: Final = 0.5


@click.group()
def workers() -> None:
    """List workers and drain them."""


@client_command
@json_option()
def list_workers(client: Client, as_json: bool) -> None:
    """List the workers that hold a lease: worker (its name, which `drain` takes), state, model."""
    found = client.fleet.workers.statuses()
    if not found:
        note_none("workers")
    for each in found:
        echo_fields(
            {"worker": each.worker, "state": each.state, "model": each.model}, as_json=as_json
        )


@client_command
@click.argument("names", nargs=-1)
@click.option(
    "--least-busy",
    type=click.IntRange(1),
    help="In place of NAMES: drain so many workers, first those in quarantine, then those with the "
    "fewest messages in hand.",
)
@click.option("--wait", is_flag=True, help="Wait until they have ended.")
@json_option()
def drain(
    client: Client, names: tuple[str, ...], least_busy: int | None, wait: bool, as_json: bool
) -> None:
    """Let workers finish what is on their devices, requeue the rest and end.

    NAMES are those of `imagefleet workers list`. A worker reads the request at its next heartbeat,
    within a quarter of its lease, and then does what it does at SIGTERM. The exit code is 1 if a
    worker dies meanwhile.
    """
    if bool(names) == (least_busy is not None):
        raise click.UsageError("name workers, or give --least-busy COUNT")
    if least_busy is not None:
        names = _least_busy(client, least_busy)
    states = _states(client)
    for name in names:
        if states.get(name, WorkerState.LOST) in (WorkerState.LOST, WorkerState.UNKNOWN):
            limit = "is no living worker that can be drained; see `imagefleet workers list`"
            raise InvalidRequest("NAMES", name, limit)
    client.fleet.workers.request_drain(names)
    lost = _await_ends(client, names) if wait else set()
    for name in names:
        outcome = "lost" if name in lost else "ended"
        echo_fields({"worker": name, "state": outcome if wait else "draining"}, as_json=as_json)
    sys.exit(bool(lost))


def _least_busy(client: Client, count: int) -> tuple[str, ...]:
    """Return the names of `count` workers. Those that drain already are not among them."""
    order = {WorkerState.QUARANTINED: 0, WorkerState.READY: 1}
    found = [each for each in client.fleet.read().workers if each.state in order]
    if len(found) < count:
        limit = f"is more than the workers that can be drained: {len(found)}"
        raise InvalidRequest("--least-busy", count, limit)
    found.sort(key=lambda each: (order[each.state], each.claims))
    return tuple(each.worker for each in found[:count])


def _states(client: Client) -> dict[str, WorkerState]:
    return {each.worker: each.state for each in client.fleet.workers.statuses()}


def _await_ends(client: Client, names: Collection[str]) -> set[str]:
    """Wait until no worker of `names` is alive. Return those that died.

    A worker that drains removes its lease. If one has vanished whose lease may have expired since
    it was seen last, another worker has removed it, and requeued what it held.
    """
    leases_end: dict[str, float] = {}
    waited_for, lost = set(names), set[str]()
    while waited_for:
        asked_at = time.monotonic()
        found = {each.worker: each for each in client.fleet.workers.statuses()}
        answered_at = time.monotonic()
        for name in tuple(waited_for):
            status = found.get(name)
            if status is not None and status.state is not WorkerState.LOST:
                leases_end[name] = asked_at + (status.lease_left_s or 0.0)
                continue
            waited_for.remove(name)
            if status is not None or answered_at >= leases_end.get(name, math.inf):
                lost.add(name)
        if waited_for:
            time.sleep(_POLL_S)
    return lost


workers.add_command(list_workers, "list")
workers.add_command(drain, "drain")
