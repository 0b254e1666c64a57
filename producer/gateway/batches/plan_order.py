"""Plan the run of an order and start it: read its input, plan its rows, charge them, send them.

Every step can be repeated by another gateway if this one dies: an order whose dataset has a plan is
not planned again, so its rows are the same whatever the fleet offers by then. The calls block.
"""

import hashlib
import io
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from imagefleet.producer.bulk.rows import shown_value
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.bulk.start_run import plan_run
from imagefleet.producer.client.client import Client
from imagefleet.producer.gateway.access.image_quota import ImageQuota
from imagefleet.producer.gateway.batches.batch_lines import BatchLines
from imagefleet.producer.gateway.batches.batch_output import (
    Failure,
    error_line,
    rejected_file_id,
)
from imagefleet.producer.gateway.batches.count_rows import rejected_errors
from imagefleet.producer.gateway.batches.order_events import receiver_of
from imagefleet.producer.gateway.batches.run_order import (
    LineError,
    OrderRecord,
    OrderState,
    RunOrder,
)
from imagefleet.producer.gateway.batches.run_orders import RunOrders
from imagefleet.producer.gateway.batches.run_places import RunPlaces
from imagefleet.producer.gateway.files.tenant_files import TenantFiles
from imagefleet.producer.gateway.jobs.caller_images import CallerImages
from imagefleet.producer.gateway.openai.field_names import SHAPE, in_openai_names, width_first
from imagefleet.producer.gateway.problems import Problem
from imagefleet.shared.errors import InvalidRequest, PlanConflict, UnknownRun
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.parameter_types import MAX_SEED
from imagefleet.shared.jobs.queues import DEFAULT_MODEL

_SHARD_SIZE: Final = 100
"""A shard of a batch has at most so many images."""
_PLAIN: Final = re.compile(r"[^A-Za-z0-9_.-]")


class Refused(Exception):
    """An order can never be planned."""

    def __init__(self, errors: tuple[LineError, ...]) -> None:
        super().__init__(errors[0].message)
        self.errors: Final = errors


class OrderPlanner:
    """Plans and starts orders. Threads may share it."""

    def __init__(
        self,
        client: Client,
        files: TenantFiles,
        inputs: CallerImages,
        orders: RunOrders,
        places: RunPlaces,
        aliases: dict[str, str],
    ) -> None:
        """
        Args:
            aliases: other names of models.
        """
        self._client = client
        self._files = files
        self._inputs = inputs
        self._orders = orders
        self._places = places
        self._aliases = aliases
        self._quota = ImageQuota(client.connection)

    def start(self, record: OrderRecord) -> None:
        """Plan an order and start its run.

        Raises:
            Refused: it can never be planned.
            BrokerUnavailable, ConfigurationError, StorageUnavailable: it may be planned later.
        """
        with self._input_of(record.order) as path:
            if record.order.is_batch:
                run, fields = self._plan_batch(record, path)
            else:
                run, fields = self._plan_own(record, path)
        self._charge(record, run)
        # From here on only the run reports its end: it may begin before its order is in progress.
        self._orders.change(
            record.id,
            bulk_run=run.id,
            model=run.plan.model or "",
            samples=run.plan.samples,
            rejected=run.plan.rejected,
            **fields,
        )
        order = record.order
        run.resume(max_failures=None, priority=order.priority, receiver=receiver_of(order, run))
        self._orders.note(record.id, OrderState.IN_PROGRESS)

    def _plan_batch(self, record: OrderRecord, path: Path) -> tuple[BulkRun, dict[str, Any]]:
        lines = BatchLines(path=path, endpoint=record.order.endpoint, aliases=self._aliases)
        if errors := lines.check():
            raise Refused(errors)
        shared = lines.shared
        options = {"format": "files", "shard_size": _SHARD_SIZE, "seed": _seed_of(record.id)}
        options |= {name: value for name, value in shared.items() if value is not None}
        try:
            run = self._planned(record, rows=lines.rows, **options)
        except Refused as refused:
            raise Refused((*lines.rejected, *refused.errors)) from None
        self._save_rejected(record, run, lines)
        return run, {"rows": len(lines.custom_ids)}

    def _plan_own(self, record: OrderRecord, path: Path) -> tuple[BulkRun, dict[str, Any]]:
        run = self._planned(record, rows=lambda: path, **record.order.options)
        errors = rejected_errors(run)
        return run, {"rows": run.plan.rows + run.plan.rejected, "errors": errors}

    def _planned(self, record: OrderRecord, *, rows: Any, **options: Any) -> BulkRun:
        """Return the run of an order, which another gateway may have planned. Raises Refused."""
        destination = self._places.destination(record)
        self._orders.change(record.id, destination=destination)
        resolve = partial(_resolve, self._inputs, record.order)
        with suppress(UnknownRun):
            return self._client.find_bulk(destination)
        try:
            connection, submit = self._client.connection, self._client.submit
            return plan_run(connection, submit, rows(), destination, resolve=resolve, **options)
        except PlanConflict:  # another gateway has planned it meanwhile, for another fleet
            return self._client.find_bulk(destination)
        except InvalidRequest as error:
            wrong = LineError(code=error.code, message=str(error), param=error.field)
            raise Refused((wrong,)) from None

    def _charge(self, record: OrderRecord, run: BulkRun) -> None:
        """Charge the images of a run to the quota of its key, once. Raises Refused."""
        order = record.order
        if record.charged:
            return
        charge = self._quota.charge(order.caller, run.plan.samples, record.id)
        if not charge.allowed:
            for key in list(run.store.list("plan/")):
                run.store.delete(key)
            message = (
                f"the key {order.key_id} may order {order.images_per_day} images a day; "
                f"{charge.left} are left, and {run.plan.samples} are needed"
            )
            raise Refused((LineError(code="quota_used", message=message),))
        self._orders.change(record.id, charged=run.plan.samples)

    def _save_rejected(self, record: OrderRecord, run: BulkRun, lines: BatchLines) -> None:
        """Keep the names of the rejected requests of a batch: its input may be deleted."""
        if not run.plan.rejected:
            return
        written = io.BytesIO()
        offer = self._client.offers().get(run.plan.model or DEFAULT_MODEL)
        for rejected in run.rejected():
            row, error = int(str(rejected["row"])), _failure(rejected, offer)
            written.write(error_line(record.id, row, lines.custom_ids[row], 400, error))
        self._files.save(
            record.order.tenant,
            written,
            id=rejected_file_id(record.id),
            name="rejected.jsonl",
            content_type="application/jsonl",
        )

    @contextmanager
    def _input_of(self, order: RunOrder) -> Iterator[Path]:
        """Yield the path of a copy of the input file. Raises Refused if the file is gone."""
        with tempfile.TemporaryDirectory(prefix="imagefleet-order-") as folder:
            try:
                file = self._files.find(order.tenant, order.input_file_id)
                path = Path(folder, f"input-{_PLAIN.sub('_', file.name)}")
                with path.open("wb") as target:
                    self._files.copy(order.tenant, file, target)
            except Problem as problem:
                error = LineError(
                    code="input_file_gone", message=problem.message, param="input_file_id"
                )
                raise Refused((error,)) from None
            yield path


def _resolve(inputs: CallerImages, order: RunOrder, field: str, text: str) -> str | bytes:
    """Return what a row starts from, as far as the caller may read it. Raises InvalidRequest."""
    try:
        return inputs.resolve_text(order.caller, field, text)
    except Problem as problem:
        limit = problem.message.rpartition("': ")[2]
        raise InvalidRequest(field, shown_value(text), limit) from None


def _failure(rejected: Mapping[str, object], offer: Offer | None) -> Failure:
    """Return why a request of a batch was rejected, in the names of OpenAI's fields."""
    field, value, reason = str(rejected["field"]), rejected["value"], str(rejected["reason"])
    if value is None and reason.startswith(field):  # it is the sentence of a problem already
        return Failure(code="invalid_request", message=reason, param=field)
    fields = {"size": width_first(str(value))} if field == SHAPE else {}
    problem = in_openai_names(InvalidRequest(field, value, reason), fields, offer)
    return Failure(code=problem.code, message=problem.message, param=problem.field)


def _seed_of(order_id: str) -> int:
    """Return the seed of the run of a batch: requests without a seed differ between batches."""
    return int(hashlib.sha256(order_id.encode()).hexdigest()[:8], 16) & MAX_SEED
