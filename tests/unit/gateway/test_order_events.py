"""What the receiver of a run over HTTP gets if its gateways do not do as usual."""

from pathlib import Path
from typing import Any

import pytest

from imagefleet.producer.gateway.batches.order_events import (
    end_without_run,
    receiver_of,
    set_missing_receiver,
)
from imagefleet.producer.gateway.batches.run_order import LineError, OrderState, RunOrder
from imagefleet.shared.webhooks.signature import webhook_id
from imagefleet.testing import FakeFleet

WRONG = LineError(code="invalid_request", message="no", param="prompt")


def _order(**changes: Any) -> RunOrder:
    fields: dict[str, Any] = {
        "id": "run_1",
        "tenant": "gold",
        "key_id": None,
        "images_per_day": None,
        "max_priority": 0,
        "priority": 3,
        "input_file_id": "file-1",
        "callback_url": "https://hooks.example/x",
        "created_at": 1_000.5,
    }
    return RunOrder.model_validate({**fields, **changes})


def test_a_run_that_a_gateway_without_receivers_has_started_is_reported_once(
    tmp_path: Path,
) -> None:
    order = _order(metadata={"mine": "x"})
    with FakeFleet(auto=False) as fleet:
        run = fleet.client.bulk(["a ring", "a star"], tmp_path / "data")
        fleet.run_all()
        assert fleet.callbacks() == []
        for _ in range(2):
            set_missing_receiver(order, run)
        [event] = fleet.callbacks()
        set_missing_receiver(_order(callback_url="https://other.example/"), run)
        assert fleet.callbacks() == [event]
    data = event["data"]
    assert (event["type"], data["id"], data["bulk_run"]) == ("run.ended", "run_1", run.id)
    assert (data["metadata"], data["images"], data["rows"]) == ({"mine": "x"}, 2, 2)


def test_two_gateways_that_let_an_order_end_send_one_event_in_effect() -> None:
    messages = [end_without_run(_order(), OrderState.FAILED, (WRONG,)) for _ in range(2)]
    ids = {webhook_id(each.event_id, each.occurrence) for each in messages if each}
    assert len(ids) == 1
    other = end_without_run(_order(created_at=1_000.6), OrderState.FAILED, ())
    assert other
    assert webhook_id(other.event_id, other.occurrence) not in ids


@pytest.mark.parametrize("tenant", ["gold", None])
def test_an_order_without_an_address_has_no_event(tmp_path: Path, tenant: str | None) -> None:
    order = _order(callback_url=None, tenant=tenant)
    assert end_without_run(order, OrderState.CANCELLED, ()) is None
    with FakeFleet(auto=False) as fleet:
        run = fleet.client.bulk(["a ring"], tmp_path / "data")
        assert receiver_of(order, run) is None
        set_missing_receiver(order, run)
        fleet.run_all()
        assert fleet.callbacks() == []
