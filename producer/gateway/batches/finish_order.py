"""Watch the run of an order, stop it if it must end, and write the output of a batch.

Every step can be repeated by another gateway if this one dies. The calls block.
"""

import tempfile
import time
from typing import Any, BinaryIO, Final

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.gateway.batches.batch_output import (
    BatchOutput,
    Failure,
    rejected_file_id,
)
from imagefleet.producer.gateway.batches.count_rows import count_rows
from imagefleet.producer.gateway.batches.order_events import receiver_of, set_missing_receiver
from imagefleet.producer.gateway.batches.run_order import (
    BATCH_PREFIX,
    OrderRecord,
    OrderState,
)
from imagefleet.producer.gateway.batches.run_orders import RunOrders
from imagefleet.producer.gateway.batches.run_places import RunPlaces
from imagefleet.producer.gateway.files.stored_file import OPENAI_PREFIX, OUTPUT_PURPOSE
from imagefleet.producer.gateway.files.tenant_files import TenantFiles
from imagefleet.producer.gateway.problems import Problem
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.errors import UnknownRun
from imagefleet.shared.jobs.model import State

_RELEASE_S: Final = 30.0
"""Seconds for which a stopped run may hold shards: workers release them between two batches."""
_MISSING: Final = {
    OrderState.CANCELLED: Failure(code="batch_cancelled", message="the batch was cancelled before"),
    OrderState.EXPIRED: Failure(
        code="batch_expired", message="the completion window of the batch ended before"
    ),
    OrderState.COMPLETED: Failure(
        code="shard_failed", message="its images could not be made or stored"
    ),
}


class OrderFinisher:
    """Brings started orders to their end. Threads may share it."""

    def __init__(self, files: TenantFiles, orders: RunOrders, places: RunPlaces) -> None:
        self._files = files
        self._orders = orders
        self._places = places

    def go_on(self, record: OrderRecord) -> bool:
        """Let an order end if its run has ended or must end. Return whether it has ended.

        Raises:
            PlanDamaged, PlanConflict: its dataset is gone.
            BrokerUnavailable, StorageUnavailable: it goes on later.
        """
        run = self._places.open(record)
        status = self._status(run, record)
        end = record.must_end
        if end is None and not status.done:
            return False
        if end is not None and not status.done:
            run.cancel()
            status = run.status()
        if end is not None and status.shards_by_state[State.RUNNING]:
            since = record.cancelling_at or record.order.expires_at or 0.0
            if time.time() < since + _RELEASE_S:
                return False
        self._finish(record, run, end or OrderState.COMPLETED)
        return True

    def _status(self, run: BulkRun, record: OrderRecord) -> RunStatus:
        try:
            return run.status()
        except UnknownRun:  # Redis has lost it, or the gateway died before it was sent
            order = record.order
            run.resume(max_failures=None, priority=order.priority, receiver=receiver_of(order, run))
            return run.status()

    def _finish(self, record: OrderRecord, run: BulkRun, end: OrderState) -> None:
        set_missing_receiver(record.order, run)
        if end is OrderState.COMPLETED:
            self._orders.note(record.id, OrderState.FINALIZING)
        if record.order.is_batch:
            fields = self._write_output(record, run, end)
        else:
            fields = count_rows(record, run)
        self._orders.end(record.id, end, **fields)

    def _write_output(self, record: OrderRecord, run: BulkRun, end: OrderState) -> dict[str, Any]:
        """Store the output files of a batch. Return the fields of the record that name them."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            written = BatchOutput(
                batch_id=record.id,
                run=run,
                created_at=int(time.time()),
                output=output,
                errors=errors,
                missing=_MISSING[end],
            )
            self._copy_rejected(record, errors)
            written.write()
            return {
                "done": written.done,
                "failed": written.failed + record.rejected,
                "made": written.images,
                "output_file_id": self._save(record, output, "output"),
                "error_file_id": self._save(record, errors, "errors"),
            }

    def _copy_rejected(self, record: OrderRecord, target: BinaryIO) -> None:
        """Write the lines of the requests that were never planned."""
        if not record.rejected:
            return
        tenant = record.order.tenant
        try:
            file = self._files.find(tenant, rejected_file_id(record.id))
            self._files.copy(tenant, file, target)
        except Problem:  # it has expired
            return

    def _save(self, record: OrderRecord, content: BinaryIO, kind: str) -> str | None:
        """Store an output file, and return its id; None if it is empty."""
        if not content.tell():
            return None
        name = record.id.removeprefix(BATCH_PREFIX)
        file = self._files.save(
            record.order.tenant,
            content,  # type: ignore[arg-type]
            id=f"{OPENAI_PREFIX}{name}{kind}",
            name=f"{record.id}_{kind}.jsonl",
            content_type="application/jsonl",
            purpose=OUTPUT_PURPOSE,
            keep_s=record.order.keep_s,
        )
        return file.id
