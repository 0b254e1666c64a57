"""Write our own runs in JSON."""

from typing import Any

from imagefleet.producer.gateway.batches.batch_shapes import counts, moments
from imagefleet.producer.gateway.batches.run_order import OrderRecord
from imagefleet.producer.gateway.batches.verification import Verification
from imagefleet.shared.bulk.records import RunStatus


def run_body(record: OrderRecord, run: RunStatus | None) -> dict[str, Any]:
    """Return an order as a run.

    Args:
        run: the status of its bulk run, while it has not ended.
    """
    order = record.order
    return {
        "id": record.id,
        "object": "run",
        "status": record.state.value,
        "model": record.model or None,
        "input_file_id": order.input_file_id,
        "options": order.options,
        "priority": order.priority,
        "callback_url": _without_query(order.callback_url),
        "created_at": int(order.created_at),
        **moments(record),
        "errors": [each.model_dump() for each in record.errors],
        "rows": {**counts(record, run), "rejected": record.rejected},
        "images": _images(record, run),
        "shard_errors": [
            {"code": each.code, "message": each.message} for each in (run.errors if run else ())
        ],
        "bulk_run": record.bulk_run or None,
        "metadata": order.metadata,
        "verification": _verification_body(record.verification),
    }


def _without_query(address: str | None) -> str | None:
    """Return an address without its query, which may have a secret: other keys may read the run."""
    return None if address is None else address.partition("?")[0]


def _verification_body(verification: Verification | None) -> dict[str, Any] | None:
    if verification is None:
        return None
    hidden = {"id", "tries", "error"}
    return {
        **verification.model_dump(mode="json", exclude=hidden),
        "clean": verification.is_clean,
        "error": verification.error or None,
    }


def _images(record: OrderRecord, run: RunStatus | None) -> dict[str, int | None]:
    """Return the images of a run. Once it has ended, those that are not there count as failed."""
    made = failed = None if record.has_ended else 0
    if record.has_ended and record.made is not None:
        made, failed = record.made, record.samples - record.made
    elif run is not None:
        made, failed = max(0, run.images), max(0, run.failed_images)
    return {"total": record.samples, "completed": made, "failed": failed}
