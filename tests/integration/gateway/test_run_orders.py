"""The records of orders, and the indexes of their tenants, in a real Redis."""

import pytest
import redis

from imagefleet import Client
from imagefleet.producer.gateway.access.fleet_secret import FleetSecret
from imagefleet.producer.gateway.batches.run_order import OrderState, RunOrder
from imagefleet.producer.gateway.batches.run_orders import RunOrders
from imagefleet.producer.gateway.redis_keys import ordered_run_key, ordered_runs_key

_KEEP_S = 400 * 24 * 3_600


@pytest.fixture
def orders(producer: Client) -> RunOrders:
    secret = FleetSecret(producer.connection)
    secret.load()
    return RunOrders(producer.connection, secret, keep_s=_KEEP_S)


def test_the_index_of_a_tenant_expires_after_all_its_records(
    orders: RunOrders, client: redis.Redis, namespace: str
) -> None:
    order = RunOrder(
        id="run_1",
        tenant="gold",
        key_id=None,
        images_per_day=None,
        max_priority=0,
        priority=5,
        input_file_id="file-1",
        created_at=1.0,
    )
    index = ordered_runs_key(namespace, orders.folder("gold"))
    record = ordered_run_key(namespace, order.id)
    orders.create(order)
    assert client.ttl(index) > client.ttl(record) > 0
    orders.end(order.id, OrderState.COMPLETED)
    assert client.ttl(index) > client.ttl(record) > 0
