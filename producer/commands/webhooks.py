"""`imagefleet webhooks`: list callbacks and send them again."""

from collections.abc import Mapping

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.commands import webhook_test
from imagefleet.producer.commands.client_command import client_command, iso_time
from imagefleet.producer.commands.each import for_each
from imagefleet.producer.commands.output import (
    echo,
    echo_fields,
    echo_json,
    json_option,
    limit_option,
    note_none,
)
from imagefleet.producer.commands.run_callbacks import callbacks_of_run, replay_end_of_run
from imagefleet.shared.errors import UnknownJob
from imagefleet.shared.jobs.callback_events import build_callback
from imagefleet.shared.jobs.model import CallbackEvent, State
from imagefleet.shared.webhooks.outbox_message import CallbackEntry, CallbackState, OutboxMessage

_FINAL_EVENTS: dict[State, CallbackEvent] = {
    State.SUCCEEDED: CallbackEvent.SUCCEEDED,
    State.FAILED: CallbackEvent.FAILED,
    State.CANCELLED: CallbackEvent.CANCELLED,
}


@click.group()
def webhooks() -> None:
    """List callbacks with their latest try, send them again, and test a receiver."""


@client_command
@click.option("--job", "job_id", help="List this job's callbacks only, including delivered ones.")
@click.option("--run", help="The same of a bulk run: its id, its id over HTTP, or its destination.")
@click.option("--failed", is_flag=True, help="List only callbacks that were given up.")
@limit_option
@json_option()
def list_callbacks(
    client: Client, job_id: str | None, run: str | None, failed: bool, limit: int, as_json: bool
) -> None:
    """List callbacks: first those that were given up, then those that wait.

    Columns: id, state, time, tries, address, outcome of the latest try.
    """
    if job_id is not None and run is not None:
        raise click.UsageError("give either --job or --run")
    if job_id is not None:
        entries = client.outbox.entries_of(job_id)[:limit] or _no_entries(client, job_id)
    elif run is not None:
        entries = callbacks_of_run(client, run)[:limit]
    else:
        entries = client.outbox.entries(failed=failed, limit=limit)
    listed = [each for each in entries if not failed or each.standing is CallbackState.GIVEN_UP]
    if not listed:
        note_none("callbacks that were given up" if failed else "callbacks")
    for entry in listed:
        if as_json:
            echo_json(entry.model_dump_json())
        else:
            echo(_format_entry(entry))


@client_command
@click.argument("ids", nargs=-1)
@click.option("--job", "job_id", help="Send this job's final callback, even if it was delivered.")
@click.option("--run", help="The same of a bulk run: its id, its id over HTTP, or its destination.")
@json_option()
def replay(
    client: Client, ids: tuple[str, ...], job_id: str | None, run: str | None, as_json: bool
) -> None:
    """Send callbacks again that were given up. Their tries count from zero."""
    if [bool(ids), job_id is not None, run is not None].count(True) != 1:
        raise click.UsageError(
            "give the ids of callbacks, or --job with the id of a job, or --run with a bulk run"
        )

    def replay_one(callback_id: str) -> Mapping[str, object]:
        client.outbox.replay(callback_id)
        return {"note": "due now"}

    if job_id is not None:
        echo_fields({"id": _replay_final(client, job_id), "note": "due now"}, as_json=as_json)
    if run is not None:
        echo_fields({"id": replay_end_of_run(client, run), "note": "due now"}, as_json=as_json)
    for_each(ids, replay_one, as_json=as_json)


webhooks.add_command(list_callbacks, "list")
webhooks.add_command(replay, "replay")
webhooks.add_command(webhook_test.test)


def _no_entries(client: Client, job_id: str) -> list[CallbackEntry]:
    """Return no entries. Raise UnknownJob if there is no such job either."""
    client.get(job_id)
    return []


def _replay_final(client: Client, job_id: str) -> str:
    """Put the job's final callback, built from its record, into the outbox. Raises UnknownJob."""
    status = client.get(job_id).status()
    if status.state not in _FINAL_EVENTS:
        raise UnknownJob(f"job {job_id} has not ended yet: it is {status.state}")
    event = _FINAL_EVENTS[status.state]
    final = build_callback(
        event,
        job_id,
        status.request,
        result=status.result,
        error=status.error,
        worker=status.worker,
    )
    if final is None:
        raise UnknownJob(f"job {job_id} requested no callback for {status.state}")
    try:
        client.outbox.replay(final.id, job_id=job_id)
    except UnknownJob:  # delivered, waiting or dropped: add it, or make the waiting entry due now
        message = OutboxMessage.parse(final.message)
        client.outbox.enable(message.url)
        client.outbox.add(message)
    return final.id


def _format_entry(entry: CallbackEntry) -> str:
    parts = [entry.id, str(entry.standing), iso_time(entry.at), f"x{entry.attempts}", entry.url]
    if entry.last is not None:
        status = "" if entry.last.status is None else f"{entry.last.status} "
        parts.append(f"{entry.last.verdict}: {status}{entry.last.reason} ({entry.last.ms} ms)")
    return "  ".join(parts)
