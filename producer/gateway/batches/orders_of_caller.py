"""Order, read and cancel batches and runs for requests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.batches.run_keeper import RunKeeper
from imagefleet.producer.gateway.batches.run_order import (
    OrderRecord,
    OrderState,
    RunOrder,
)
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.bodies import off_loop
from imagefleet.producer.gateway.web.callers import gateway_of
from imagefleet.producer.gateway.web.long_texts import digest_of
from imagefleet.producer.gateway.web.refused_tries import submitting
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.errors import UnknownRun, UnreadableRecord

_CANCELLED: Final = (OrderState.CANCELLING, OrderState.CANCELLED)


def keeper_of(request: Request) -> RunKeeper:
    """Return what works on orders in this gateway."""
    keeper: RunKeeper = request.app.state.run_keeper
    return keeper


@dataclass(frozen=True, kw_only=True)
class CallerOrders:
    """Finds and changes the orders of one caller: batches, or runs."""

    gateway: Gateway
    keeper: RunKeeper
    caller: Caller
    what: str
    """It is the word for an order, `batch` or `run`."""

    @classmethod
    def of(cls, request: Request, caller: Caller, what: str) -> "CallerOrders":
        """Return the orders of the caller of a request."""
        return cls(gateway=gateway_of(request), keeper=keeper_of(request), caller=caller, what=what)

    async def create(
        self, request: Request, fields: dict[str, Any], order_of: Callable[[str], RunOrder]
    ) -> OrderRecord:
        """Record an order. A repeated request has the same one.

        Args:
            fields: the body of the request.
            order_of: takes what is unique in the id of the order, and returns the order. It may
                block.

        Raises Problem, BrokerUnavailable.
        """
        repeats = self.gateway.repeats
        content = await off_loop(request, digest_of, fields)
        job = await repeats.job_of(self.caller, request.url.path, content, request.headers)
        order = await self.gateway.uploads.run(order_of, job.name)
        with submitting(request, order=order.id):
            record = await self.gateway.threads.run(self.keeper.orders.create, order)
        await repeats.answered(job)
        return record

    async def find(self, order_id: str) -> OrderRecord:
        """Return an order. Raises Problem (404), BrokerUnavailable."""
        orders = self.keeper.orders
        return await self.gateway.threads.run(orders.find, self.caller, order_id, self.what)

    async def list(self) -> list[OrderRecord]:
        """Return all orders, the newest first. Raises BrokerUnavailable."""
        records = await self.gateway.threads.run(self.keeper.orders.list, self.caller)
        return [each for each in records if each.order.is_batch or self.what == "run"]

    async def cancel(self, order_id: str) -> OrderRecord:
        """Let an order end. Raises Problem: 404, 409 if it has ended otherwise."""
        record = await self.find(order_id)
        if record.has_ended and record.state not in _CANCELLED:
            message = f"{order_id} is {record.state}; only one that has not ended can be cancelled"
            raise Problem(409, "has_ended", message)
        if record.state not in _CANCELLED:
            await self.gateway.threads.run(self.keeper.orders.note, order_id, OrderState.CANCELLING)
        return await self.find(order_id)

    async def run_status(self, record: OrderRecord) -> RunStatus | None:
        """Return the status of the bulk run of an order that has not ended, if there is one."""
        if record.has_ended or not record.bulk_run:
            return None
        return await self.gateway.threads.run(self._run_status, record.bulk_run)

    def _run_status(self, bulk_run: str) -> RunStatus | None:
        try:
            with self.gateway.client.connection.runs(bulk_run) as runs:
                return runs.get(bulk_run)
        except (UnknownRun, UnreadableRecord):
            return None


def runs_of(request: Request, caller: Caller) -> CallerOrders:
    """Return the orders of the caller of a request as runs, which batches are, too."""
    return CallerOrders.of(request, caller, what="run")
