"""Keep the records of orders in Redis, each for its tenant. The calls block.

To a caller the orders of other tenants do not exist.
"""

import json
import time
from typing import Any, Final, cast

from pydantic import BaseModel, ValidationError

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.access.fleet_secret import FleetSecret
from imagefleet.producer.gateway.batches.run_order import OrderRecord, OrderState, RunOrder
from imagefleet.producer.gateway.files.due_times import DueTimes
from imagefleet.producer.gateway.files.tenant_files import tenant_folder
from imagefleet.producer.gateway.problems import Problem, unknown
from imagefleet.producer.gateway.redis_keys import (
    ordered_run_key,
    ordered_runs_key,
    runs_due_key,
)
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types, read_key
from imagefleet.shared.webhooks.outbox_message import OutboxMessage

_CLAIM_S: Final = 15.0
"""Seconds after which another gateway goes on with what a killed one had begun."""
_UNFINISHED_S: Final = 90 * 24 * 3_600
"""Seconds for which the record of an order is kept that does not end."""


class RunOrders:
    """Creates, reads and changes orders. Threads may share it."""

    def __init__(self, connection: Connection, secret: FleetSecret, keep_s: int) -> None:
        """
        Args:
            keep_s: seconds for which an order is known after it has ended.
        """
        self._connection = connection
        self._secret = secret
        self._keep_s = keep_s
        self._namespace = connection.namespace
        self.due: Final = DueTimes(connection, runs_due_key(self._namespace), _CLAIM_S)

    def create(self, order: RunOrder) -> OrderRecord:
        """Record an order, so that a gateway will begin with it. A repeated one is found again.

        Raises:
            Problem: 409 if the id belongs to another order.
            BrokerUnavailable.
        """
        key, index = self._key(order.id), self._index(order.tenant)
        redis = self._connection.redis
        with self._connection.translate_errors(), redis.pipeline(transaction=True) as pipe:
            pipe.hsetnx(key, "order", order.model_dump_json())
            pipe.expire(key, _UNFINISHED_S)
            pipe.zadd(index, {order.id: order.created_at}, nx=True)
            pipe.expire(index, _UNFINISHED_S + self._keep_s)  # no record is kept for longer
            pipe.zadd(runs_due_key(self._namespace), {order.id: 0}, nx=True)
            pipe.execute()
        record = self.read(order.id)
        assert record is not None
        if _without_time(record.order) != _without_time(order):
            message = "this Idempotency-Key belongs to a request with other fields"
            raise Problem(409, "id_in_use", message, field="Idempotency-Key")
        return record

    def read(self, order_id: str) -> OrderRecord | None:
        """Return a record by its id; None if there is none. Raises BrokerUnavailable."""
        key = self._key(order_id)
        with self._connection.translate_errors():
            fields = read_key(self._connection.redis, lambda pipe: pipe.hgetall(key))
        return _parse(fields)

    def find(self, caller: Caller, order_id: str, what: str) -> OrderRecord:
        """Return an order of the caller.

        Args:
            what: the word for it, `batch` or `run`.

        Raises Problem (404), BrokerUnavailable.
        """
        record = self.read(order_id)
        if record is None or record.order.tenant != caller.tenant:
            raise unknown(what, order_id)
        return record

    def list(self, caller: Caller) -> list[OrderRecord]:
        """Return the orders of the caller, the newest first. Raises BrokerUnavailable."""
        redis, index = self._connection.redis, self._index(caller.tenant)
        with self._connection.translate_errors():
            ids = read_key(redis, lambda pipe: pipe.zrevrange(index, 0, -1)) or []
            with redis.pipeline(transaction=False) as pipe:
                for order_id in ids:
                    pipe.hgetall(self._key(order_id))
                answers = read_ignoring_wrong_types(pipe) if ids else []
            if gone := [id for id, fields in zip(ids, answers, strict=True) if not fields]:
                redis.zrem(index, *gone)
        return [record for fields in answers if (record := _parse(fields)) is not None]

    def change(self, order_id: str, **fields: Any) -> None:
        """Write fields of a record. Raises BrokerUnavailable."""
        with self._connection.translate_errors():
            self._connection.redis.hset(self._key(order_id), mapping=_texts(fields))

    def note(self, order_id: str, state: OrderState) -> None:
        """Note that an order has come to this state now, unless it did before.

        Raises BrokerUnavailable.
        """
        with self._connection.translate_errors():
            key, field = self._key(order_id), f"{state.value}_at"
            self._connection.redis.hsetnx(key, field, json.dumps(time.time()))

    def end(
        self,
        order_id: str,
        state: OrderState,
        *,
        callback: OutboxMessage | None = None,
        **fields: Any,
    ) -> None:
        """Let an order end in this state, and report that by `callback`.

        Raises BrokerUnavailable.
        """
        key = self._key(order_id)
        redis = self._connection.redis
        with self._connection.translate_errors(), redis.pipeline(transaction=True) as pipe:
            if fields:
                pipe.hset(key, mapping=_texts(fields))
            pipe.hsetnx(key, f"{state.value}_at", json.dumps(time.time()))
            pipe.expire(key, self._keep_s)
            if callback is not None:
                self._connection.outbox.add(callback, pipe)
            pipe.execute()
        self.due.forget(order_id)

    def folder(self, tenant: str | None) -> str:
        """Return the folder of a tenant in the store."""
        return tenant_folder(self._secret, tenant)

    def _key(self, order_id: str) -> str:
        return ordered_run_key(self._namespace, order_id)

    def _index(self, tenant: str | None) -> str:
        return ordered_runs_key(self._namespace, self.folder(tenant))


def _without_time(order: RunOrder) -> RunOrder:
    return order.model_copy(update={"created_at": 0.0})


def _texts(fields: dict[str, Any]) -> dict[Any, Any]:
    return {name: _dump(value) for name, value in fields.items()}


def _dump(value: Any) -> str:
    if isinstance(value, tuple):
        return json.dumps([each.model_dump() for each in value])
    return value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)


def _parse(fields: object) -> OrderRecord | None:
    """Return a record; None if it is missing or damaged."""
    if not fields:
        return None
    try:
        parsed = {name: json.loads(text) for name, text in cast(dict[str, str], fields).items()}
        return OrderRecord.model_validate(parsed)
    except (ValueError, ValidationError):
        return None
