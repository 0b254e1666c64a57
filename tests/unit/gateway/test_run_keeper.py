"""What becomes of the runs over HTTP whose gateway dies, or whose dataset is gone."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from imagefleet.producer.gateway.access.fleet_secret import FleetSecret
from imagefleet.producer.gateway.batches.run_keeper import RunKeeper
from imagefleet.producer.gateway.batches.run_order import OrderRecord, OrderState, RunOrder
from imagefleet.producer.gateway.batches.run_shapes import run_body
from imagefleet.producer.gateway.files.tenant_files import TenantFiles
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.shared.bulk.file_layout import PLAN
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.model import State
from imagefleet.testing import FakeFleet

_KEEP_S = 3_600
_ORDER = RunOrder(
    id="run_1",
    tenant="gold",
    key_id=None,
    images_per_day=None,
    max_priority=0,
    priority=3,
    input_file_id="file-1",
    options={"input_format": "jsonl", "seed": 1},
    callback_url="https://hooks.example/x?token=secret",
    created_at=1_000.5,
)


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with FakeFleet(auto=False) as fleet:
        yield fleet


@pytest.fixture
def gateway(fleet: FakeFleet) -> Gateway:
    """What a gateway of this fleet has of an order's parts."""
    connection = fleet.client.connection
    secret = FleetSecret(connection)
    secret.load()
    files = TenantFiles(connection, secret, _KEEP_S)
    settings = SimpleNamespace(http_file_keep_s=_KEEP_S, model_aliases={})
    parts = SimpleNamespace(
        client=fleet.client, files=files, secret=secret, settings=settings, inputs=None
    )
    return cast(Gateway, parts)


@pytest.fixture
def keeper(gateway: Gateway) -> RunKeeper:
    keeper = RunKeeper(gateway)
    rows = io.BytesIO(b'{"prompt": "a ring"}\n{"prompt": "a star"}\n')
    gateway.files.save(
        "gold", rows, id="file-1", name="rows.jsonl", content_type="application/jsonl"
    )
    keeper.orders.create(_ORDER)
    return keeper


def _record(keeper: RunKeeper) -> OrderRecord:
    record = keeper.orders.read(_ORDER.id)
    assert record is not None
    return record


def _work(keeper: RunKeeper) -> OrderRecord:
    """Let a gateway work on the order once, as if it were due."""
    keeper.orders.due.put(_ORDER.id, 0)
    assert keeper._work()
    return _record(keeper)


def _redis_goes_in(
    monkeypatch: pytest.MonkeyPatch, keeper: RunKeeper, method: str, goes: Callable[..., bool]
) -> None:
    """Let calls of a method of the orders fail, as in a gateway that dies there."""
    whole = getattr(keeper.orders, method)

    def broken(*args: Any, **fields: Any) -> None:
        if goes(*args, **fields):
            raise BrokerUnavailable("Redis is away")
        whole(*args, **fields)

    monkeypatch.setattr(keeper.orders, method, broken)


def _ends(fleet: FakeFleet) -> list[dict[str, Any]]:
    return [each["data"] for each in fleet.callbacks() if each["type"] == "run.ended"]


@pytest.mark.parametrize(
    ("method", "goes"),
    [
        ("change", lambda *_, **fields: "bulk_run" in fields),
        ("note", lambda _, state: state is OrderState.IN_PROGRESS),
    ],
)
@pytest.mark.parametrize("end", [OrderState.CANCELLED, OrderState.FAILED])
def test_a_run_whose_gateway_died_when_it_began_has_one_end(
    fleet: FakeFleet,
    keeper: RunKeeper,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    goes: Callable[..., bool],
    end: OrderState,
) -> None:
    with monkeypatch.context() as patch:
        _redis_goes_in(patch, keeper, method, goes)
        assert _work(keeper).state is OrderState.VALIDATING
    if end is OrderState.CANCELLED:
        keeper.orders.note(_ORDER.id, OrderState.CANCELLING)
    else:
        keeper.orders.change(_ORDER.id, tries=5)
    assert _work(keeper).state is end
    fleet.run_all()
    assert len(_ends(fleet)) == 1
    states = {run.state for run in _runs(fleet)}
    assert states <= {State.CANCELLED}


def _runs(fleet: FakeFleet) -> list[Any]:
    with fleet.client.connection.runs_by_lane() as runs:
        return [runs.of(each).get(each) for each in runs.ids()]


def test_a_run_whose_plan_is_damaged_ends_and_names_no_place(
    fleet: FakeFleet, gateway: Gateway, keeper: RunKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    record = _work(keeper)
    assert record.state is OrderState.IN_PROGRESS
    folder = Path(record.destination.removeprefix("file://"))
    (folder / PLAN).write_text("{}")
    failed = _work(RunKeeper(gateway))  # this one has not read the plan yet
    assert failed.state is OrderState.FAILED
    [error] = failed.errors
    assert error.code == "plan_damaged"
    assert folder.name in caplog.text
    for private in (str(folder), keeper.orders.folder("gold"), "file://"):
        assert private not in error.message
    [ended] = _ends(fleet)
    assert ended["state"] == "cancelled"
    assert [run.state for run in _runs(fleet)] == [State.CANCELLED]


def test_a_run_is_shown_without_the_query_of_its_address(keeper: RunKeeper) -> None:
    assert run_body(_record(keeper), None)["callback_url"] == "https://hooks.example/x"
    silent = OrderRecord(order=_ORDER.model_copy(update={"callback_url": None}))
    assert run_body(silent, None)["callback_url"] is None
