"""Report the events of a run that was ordered over HTTP to the address that its caller named.

Once its bulk run has begun, the scripts that change it write the events. An order that ends before
that, as one whose input cannot be read, has one event: its end.
"""

import json
from datetime import UTC, datetime
from typing import Any

from imagefleet.producer.bulk.receivers import planned_counts
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.gateway.batches.run_order import LineError, OrderState, RunOrder
from imagefleet.shared.bulk.run_events import RunReceiver
from imagefleet.shared.jobs.model import State
from imagefleet.shared.webhooks.outbox_message import OutboxMessage


def receiver_of(order: RunOrder, run: BulkRun) -> RunReceiver | None:
    """Return the receiver of the run of an order, which the events call by the id of the order.

    The events do not say where the dataset lies: no caller of the gateway knows the store.
    """
    if order.callback_url is None:
        return None
    data = {"bulk_run": run.id, **planned_counts(run.plan), **_metadata(order)}
    return RunReceiver(url=order.callback_url, name=order.id, tenant=order.tenant, data=data)


def set_missing_receiver(order: RunOrder, run: BulkRun) -> None:
    """Let a run have the receiver of its order, if a gateway of an older release has started it."""
    receiver = receiver_of(order, run)
    with run.connection.runs(run.id) as runs:
        if receiver is not None and runs.events.receiver_of(run.id) is None:
            runs.events.set_receiver(run.id, receiver)


def end_without_run(
    order: RunOrder, end: OrderState, errors: tuple[LineError, ...]
) -> OutboxMessage | None:
    """Return the event of the end of an order that has no run; None if nobody asked for it.

    Its `webhook-id` is the same if another gateway lets the order end, too.
    """
    if order.callback_url is None:
        return None
    data: dict[str, Any] = {"id": order.id, "bulk_run": None, **_metadata(order)}
    data |= dict.fromkeys(("rows", "rejected", "duplicates"), 0)
    data |= {"state": end.value, "sequence": 1, "progress": 0}
    data |= dict.fromkeys(("samples", "images", "failed_images", "shards"), 0)
    data |= {
        "shards_by_state": dict.fromkeys(map(str, State), 0),
        "errors": [each.model_dump() for each in errors],
    }
    event = {"type": "run.ended", "timestamp": datetime.now(UTC).isoformat(), "data": data}
    return OutboxMessage(
        id=f"{order.id}.ended",
        job_id=order.id,
        url=order.callback_url,
        body=json.dumps(event),
        tenant=order.tenant or "",
        occurrence=f"{order.created_at:.6f}/0",
    )


def _metadata(order: RunOrder) -> dict[str, Any]:
    return {"metadata": order.metadata} if order.metadata else {}
