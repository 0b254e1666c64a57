"""Bring the orders of all tenants to their end, and delete files that have expired.

Each gateway has some of these threads. They share the orders by when each is due, so if a gateway
dies, another one goes on with what it had begun, seconds later.
"""

import logging
from typing import Final

from imagefleet.producer.gateway.batches.finish_order import OrderFinisher
from imagefleet.producer.gateway.batches.order_events import end_without_run
from imagefleet.producer.gateway.batches.plan_order import OrderPlanner, Refused
from imagefleet.producer.gateway.batches.run_order import LineError, OrderRecord, OrderState
from imagefleet.producer.gateway.batches.run_orders import RunOrders
from imagefleet.producer.gateway.batches.run_places import RunPlaces
from imagefleet.producer.gateway.files.due_threads import DueThreads
from imagefleet.producer.gateway.files.tenant_files import TenantFiles
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.shared.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ImagefleetError,
    InvalidRequest,
    StorageUnavailable,
    UnknownRun,
    UnreadableRecord,
)

log = logging.getLogger(__name__)

_THREADS: Final = 2
_LOOK_S: Final = 2.0
"""A gateway looks at the run of an order after so many seconds again."""
_LATER_S: Final = 5.0
"""Seconds after which an order is tried again that could not go on."""
_MAX_TRIES: Final = 5
"""A gateway may begin to plan an order so often: its input may be what ends the gateways."""
_MAY_PASS: Final = (BrokerUnavailable, StorageUnavailable, ConfigurationError)


class RunKeeper:
    """The threads of one gateway that work on orders."""

    def __init__(self, gateway: Gateway) -> None:
        client, files = gateway.client, gateway.files
        keep_s, aliases = gateway.settings.http_file_keep_s, gateway.settings.model_aliases
        self._connection = client.connection
        self.orders: Final = RunOrders(client.connection, gateway.secret, keep_s)
        self.places: Final = RunPlaces(client, self.orders)
        self._files: Final[TenantFiles] = files
        self._planner = OrderPlanner(
            client, files, gateway.inputs, self.orders, self.places, aliases
        )
        self._finisher = OrderFinisher(files, self.orders, self.places)
        self._threads = DueThreads("imagefleet-runs", _THREADS, self._work)

    def start(self) -> None:
        """Start the threads. They end with the process, or when this is closed."""
        self._threads.start()

    def close(self) -> None:
        """Begin nothing new. What is begun goes on elsewhere if this process ends."""
        self._threads.close()

    def _work(self) -> bool:
        """Work on one order that is due, else on one expired file. Return whether there was one."""
        order_id = self.orders.due.claim()
        if order_id is None:
            return self._files.delete_expired()
        record = self.orders.read(order_id)
        if record is None or record.has_ended:
            self.orders.due.forget(order_id)
            return True
        with self.orders.due.held(order_id):
            again_s = self._advance(record)
        if again_s is not None:
            self.orders.due.put(order_id, again_s)
        return True

    def _advance(self, record: OrderRecord) -> float | None:
        """Let an order go on. Return the seconds until it is due again; None if it has ended."""
        try:
            end = record.must_end
            if record.in_progress_at is not None or (end is not None and record.bulk_run):
                return None if self._finisher.go_on(record) else _LOOK_S
            if end is not None:
                self._end_unplanned(record, end)
                return None
            return self._plan(record)
        except _MAY_PASS as error:
            log.warning("%s: %s", record.id, error)
            return _LATER_S
        except ImagefleetError as error:
            log.error("%s cannot go on: %s", record.id, error)
            self._fail(record, (_shown(error),))
            return None

    def _plan(self, record: OrderRecord) -> float | None:
        if record.tries >= _MAX_TRIES:
            message = f"{_MAX_TRIES} attempts to read its input did not end"
            self._fail(record, (LineError(code="internal_error", message=message),))
            return None
        self.orders.change(record.id, tries=record.tries + 1)
        try:
            self._planner.start(record)
        except Refused as refused:
            self._fail(record, refused.errors)
            return None
        except _MAY_PASS:
            self.orders.change(record.id, tries=record.tries)
            raise
        return 0.0

    def _fail(self, record: OrderRecord, errors: tuple[LineError, ...]) -> None:
        log.info("%s has failed: %s", record.id, errors[0].message)
        record = self.orders.read(record.id) or record  # planning may have begun its run
        if self._cancel_run(record):  # which reports the end, unless it has ended before
            self.orders.end(record.id, OrderState.FAILED, errors=errors)
        else:
            self._end_unplanned(record, OrderState.FAILED, errors)

    def _cancel_run(self, record: OrderRecord) -> bool:
        """Stop the run of an order, whose plan may be gone. Return whether there was one."""
        if not record.bulk_run:
            return False
        try:
            with self._connection.runs(record.bulk_run) as runs:
                runs.cancel(record.bulk_run)
        except (UnknownRun, UnreadableRecord):
            return False
        return True

    def _end_unplanned(
        self, record: OrderRecord, end: OrderState, errors: tuple[LineError, ...] = ()
    ) -> None:
        callback = end_without_run(record.order, end, errors)
        fields = {"errors": errors} if errors else {}
        self.orders.end(record.id, end, callback=callback, **fields)


def _shown(error: ImagefleetError) -> LineError:
    """Return an error as the caller may read it. Others than those of its request may name the
    fleet's store, and the folder of the tenant in it."""
    if isinstance(error, InvalidRequest):
        return LineError(code=error.code, message=str(error), param=error.field)
    message = f"its dataset cannot be made or read ({error.code}); the log of the gateway says why"
    return LineError(code=error.code, message=message)
