"""Find the callbacks of a bulk run, and send the one of its end again."""

from contextlib import suppress

from imagefleet.producer.client.client import Client
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.errors import UnknownJob, UnknownRun
from imagefleet.shared.webhooks.outbox_message import CallbackEntry


def callbacks_of_run(client: Client, run: str) -> list[CallbackEntry]:
    """Return the callbacks of a run, by its id or destination: given up, waiting, and delivered.

    Raises UnknownRun, UnreadableRecord.
    """
    with client.connection.runs() as runs:
        receiver = runs.events.receiver_of(_status(client, run).id)
    return [] if receiver is None else client.outbox.entries_of(receiver[0])


def replay_end_of_run(client: Client, run: str) -> str:
    """Let the callback of the end of a run be due now, and return its id.

    One that was given up is sent again. Otherwise it is another event, as the receiver may have
    had the first.

    Raises:
        UnknownRun, UnreadableRecord: there is no such run, or it cannot be read.
        UnknownJob: the run has not ended, or has no receiver.
    """
    status = _status(client, run)
    if not status.done:
        raise UnknownJob(f"run {status.id} has not ended yet: it is {status.state}")
    with client.connection.runs() as runs:
        receiver = runs.events.receiver_of(status.id)
        if receiver is None:
            raise UnknownJob(f"run {status.id} has no callback_url")
        name, url = receiver
        callback_id = f"{name}.ended"
        try:
            client.outbox.replay(callback_id)
        except UnknownJob:  # delivered, waiting or dropped
            client.outbox.enable(url)
            runs.events.report_end_again(status.id)
    return callback_id


def _status(client: Client, run: str) -> RunStatus:
    """Return the status of a run. Its id suffices, also if its destination cannot be opened."""
    with suppress(UnknownRun), client.connection.runs() as runs:
        return runs.get(run)
    return client.find_bulk(run).status()
