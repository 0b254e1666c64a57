"""Write batches as OpenAI's API does: https://platform.openai.com/docs/api-reference/batch/object."""

from typing import Any, Final

from imagefleet.producer.gateway.batches.run_order import OrderRecord
from imagefleet.shared.bulk.records import RunStatus

_MOMENTS: Final = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


def batch_body(record: OrderRecord, run: RunStatus | None) -> dict[str, Any]:
    """Return a batch in OpenAI's form.

    Args:
        run: the status of its bulk run, while it has not ended.
    """
    order = record.order
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": order.endpoint,
        "model": record.model or None,
        "errors": _errors(record),
        "input_file_id": order.input_file_id,
        "completion_window": f"{(order.window_s or 0) // 3_600}h",
        "status": record.state.value,
        "output_file_id": record.output_file_id,
        "error_file_id": record.error_file_id,
        "created_at": int(order.created_at),
        "expires_at": None if order.expires_at is None else int(order.expires_at),
        **moments(record),
        "request_counts": counts(record, run),
        "metadata": order.metadata,
    }


def moments(record: OrderRecord) -> dict[str, int | None]:
    """Return when an order came to each of its states, in Unix seconds."""
    times = {name: getattr(record, name) for name in _MOMENTS}
    return {name: None if at is None else int(at) for name, at in times.items()}


def counts(record: OrderRecord, run: RunStatus | None) -> dict[str, int]:
    """Return the requests of an order. While it runs, they are reckoned from its images."""
    if record.has_ended or run is None:
        failed = record.failed if record.has_ended else record.rejected
        return {"total": record.rows, "completed": record.done, "failed": failed}
    planned = record.rows - record.rejected
    samples = max(1, record.samples)
    return {
        "total": record.rows,
        "completed": max(0, run.images) * planned // samples,
        "failed": record.rejected + max(0, run.failed_images) * planned // samples,
    }


def _errors(record: OrderRecord) -> dict[str, Any] | None:
    if not record.errors:
        return None
    return {"object": "list", "data": [each.model_dump() for each in record.errors]}
