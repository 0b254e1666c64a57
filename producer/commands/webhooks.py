"""`imagefleet webhooks`: callbacks owed, given up and delivered."""

import click

from imagefleet.producer.client import Client
from imagefleet.producer.commands.connection import connected, moment
from imagefleet.shared.errors import UnknownJob
from imagefleet.shared.jobs.events import callback
from imagefleet.shared.jobs.model import CallbackEvent, State
from imagefleet.shared.webhooks.messages import CallbackEntry, CallbackState, OutboxMessage

_TOLD: dict[State, CallbackEvent] = {
    State.SUCCEEDED: CallbackEvent.SUCCEEDED,
    State.FAILED: CallbackEvent.FAILED,
    State.CANCELLED: CallbackEvent.CANCELLED,
}


@click.group()
def webhooks() -> None:
    """Callbacks: where they stand, why they failed, and sending them again."""


@connected
@click.option("--job", "job_id", help="Of this job alone, delivered ones too.")
@click.option("--failed", is_flag=True, help="Only those that were given up.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_callbacks(
    client: Client, job_id: str | None, failed: bool, limit: int, as_json: bool
) -> None:
    """Given up first, then waiting: id, standing, when, tries, what came of the last one."""
    if job_id is None:
        entries = client.outbox.entries(failed=failed, limit=limit)
    else:
        entries = client.outbox.entries_of(job_id)[:limit]
    for entry in entries:
        if not failed or entry.standing is CallbackState.GIVEN_UP:
            click.echo(entry.model_dump_json() if as_json else _line(entry))


@connected
@click.argument("ids", nargs=-1)
@click.option("--job", "job_id", help="What it ended with, even if that was delivered.")
def replay(client: Client, ids: tuple[str, ...], job_id: str | None) -> None:
    """Send callbacks that were given up once more, their schedule beginning anew."""
    if bool(ids) == (job_id is not None):
        raise click.UsageError("give the ids of callbacks, or --job with the id of a job")
    for each in ids:
        client.outbox.replay(each)
        click.echo(f"{each}  due now")
    if job_id is not None:
        click.echo(f"{_tell_again(client, job_id)}  due now")


webhooks.add_command(list_callbacks, "list")
webhooks.add_command(replay, "replay")


def _tell_again(client: Client, job_id: str) -> str:
    """Owe the job's last callback anew, made from its record. Raises UnknownJob."""
    status = client.get(job_id).status()
    if status.state not in _TOLD:
        raise UnknownJob(f"job {job_id} has not ended yet: it is {status.state}")
    event = _TOLD[status.state]
    owed = callback(event, job_id, status.request, result=status.result, error=status.error)
    if owed is None:
        raise UnknownJob(f"job {job_id} asked for no callback when it is {status.state}")
    try:
        client.outbox.replay(owed.id)
    except UnknownJob:  # delivered, waiting or dropped: due now, as one entry
        message = OutboxMessage.parse(owed.message)
        client.outbox.enable(message.url)
        client.outbox.add(message)
    return owed.id


def _line(entry: CallbackEntry) -> str:
    parts = [entry.id, str(entry.standing), moment(entry.at), f"x{entry.attempts}", entry.url]
    if entry.last is not None:
        status = "" if entry.last.status is None else f"{entry.last.status} "
        parts.append(f"{entry.last.verdict}: {status}{entry.last.reason} ({entry.last.ms} ms)")
    return "  ".join(parts)
