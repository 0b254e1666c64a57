"""Find the callbacks of a bulk run, and send the one of its end again."""

from contextlib import suppress

from imagefleet.producer.client.client import Client
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.errors import UnknownJob, UnknownRun
from imagefleet.shared.webhooks.outbox_message import CallbackEntry


def callbacks_of_run(client: Client, run: str) -> list[CallbackEntry]:
    """Return the callbacks of a run, by any name that `_status` takes: given up, waiting, and
    delivered.

    Raises UnknownRun, UnreadableRecord.
    """
    run_id = _status(client, run).id
    with client.connection.runs(run_id) as runs:
        receiver = runs.events.receiver_of(run_id)
    return [] if receiver is None else client.outbox.entries_of(receiver[0])


def replay_end_of_run(client: Client, run: str) -> str:
    """Let the callback of the end of a run be due now, and return its id.

    One that was given up is sent again, and one that waits is due now. Otherwise it is another
    event, as the receiver has had the first.

    Raises:
        UnknownRun, UnreadableRecord: there is no such run, or it cannot be read.
        UnknownJob: the run has not ended, or has no receiver.
    """
    status = _status(client, run)
    if not status.done:
        raise UnknownJob(f"run {status.id} has not ended yet: it is {status.state}")
    with client.connection.runs(status.id) as runs:
        receiver = runs.events.receiver_of(status.id)
        if receiver is None:
            raise UnknownJob(f"run {status.id} has no callback_url")
        name, url = receiver
        callback_id = f"{name}.ended"
        try:
            client.outbox.replay(callback_id, job_id=status.id)
        except UnknownJob:  # waiting, delivered or dropped
            client.outbox.enable(url)
            if not client.outbox.make_due_now(callback_id):
                runs.events.report_end_again(status.id)
    return callback_id


def _status(client: Client, run: str) -> RunStatus:
    """Return the status of a run, by its id, by what its events call it, or by its destination.

    One that was ordered over HTTP has another id in its events. A destination is opened only if
    nothing else fits.
    """
    with suppress(UnknownRun), client.connection.runs(run) as runs:
        return runs.get(run)
    if "/" not in run:
        with client.connection.runs_by_lane() as by_lane:
            for each in by_lane.ids():
                receiver = by_lane.of(each).events.receiver_of(each)
                if receiver is not None and receiver[0] == run:
                    return by_lane.of(each).get(each)
    return client.find_bulk(run).status()
