"""The address that a run over HTTP names is told of the run, also if the run never begins."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import standardwebhooks

from imagefleet import Client
from imagefleet.shared.webhooks.outbox_message import CallbackEntry, DeliveryVerdict
from imagefleet.shared.webhooks.signature import new_secret
from tests.support.batches import make_key
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker, Worker, until
from tests.support.receiver import Receiver

FLEET, GOLD = new_secret(), new_secret()


@pytest.fixture
def worker(start: StartWorker) -> Worker:
    worker = start(
        IMAGEFLEET_MODEL="fake:seconds=0.1,capacity=8",
        IMAGEFLEET_BULK_CHECKPOINT_S="0.2",
        IMAGEFLEET_CALLBACK_ALLOW="127.0.0.1",
        IMAGEFLEET_WEBHOOK_SECRETS=FLEET,
        IMAGEFLEET_WEBHOOK_TENANT_SECRETS=f"gold={GOLD}",
    )
    worker.await_log("ready after")
    return worker


@pytest.fixture
def http(start: StartWorker, worker: Worker, producer: Client) -> Iterator[httpx.Client]:
    gateway = start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="true")
    authorization = {"authorization": f"Bearer {make_key(producer, 'gold')}"}
    with httpx.Client(base_url=f"{gateway.url}/v1", timeout=60, headers=authorization) as client:
        yield client


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver([GOLD]) as receiver:
        yield receiver


def _events_until_end(receiver: Receiver) -> list[dict[str, Any]]:
    """Wait for the end of a run, and return its events in their order."""

    def events() -> list[dict[str, Any]] | None:
        bodies = [json.loads(each.body) for each in receiver.deliveries]
        found = sorted(bodies, key=lambda body: body["data"]["sequence"])
        numbers = [body["data"]["sequence"] for body in found]
        has_all = bool(found) and numbers == [*range(1, len(found) + 1)]
        return found if has_all and found[-1]["type"] == "run.ended" else None

    found = until(events)
    for each in receiver.deliveries:
        standardwebhooks.Webhook(GOLD).verify(each.body, each.headers)
    return found


def test_a_run_is_reported_by_its_id_and_signed_for_its_tenant(
    http: httpx.Client, receiver: Receiver
) -> None:
    rows = [f"number {n}" for n in range(20)]
    asked = {"rows": [*rows, ""], "callback_url": receiver.url, "metadata": {"mine": "x"}}
    made = http.post("/runs", json=asked).json()
    assert made["callback_url"] == receiver.url
    first, *_, last = _events_until_end(receiver)
    assert first["type"] == "run.started"
    ended = until(lambda: (run := http.get(f"/runs/{made['id']}").json())["bulk_run"] and run)
    data = last["data"]
    assert {name: data[name] for name in ("id", "bulk_run", "metadata", "state")} == {
        "id": made["id"],
        "bulk_run": ended["bulk_run"],
        "metadata": {"mine": "x"},
        "state": "succeeded",
    }
    assert (data["rows"], data["rejected"], data["images"], data["progress"]) == (20, 1, 20, 100)
    assert "destination" not in data


def test_a_run_that_never_begins_is_reported_as_ended(
    http: httpx.Client, receiver: Receiver
) -> None:
    upload = {"file": ("rows.csv", b"no column of a prompt\n1\n")}
    file = http.post("/files", files=upload, data={"purpose": "user_data"}).json()
    asked = {"input_file_id": file["id"], "callback_url": receiver.url}
    made = http.post("/runs", json=asked).json()
    [event] = _events_until_end(receiver)
    data = event["data"]
    assert (data["id"], data["state"], data["bulk_run"]) == (made["id"], "failed", None)
    assert (data["images"], data["shards_by_state"]["queued"]) == (0, 0)
    run = http.get(f"/runs/{made['id']}").json()
    assert (run["status"], run["errors"]) == ("failed", data["errors"])
    assert "prompt" in data["errors"][0]["message"]


def test_a_cancelled_run_is_reported_as_cancelled(http: httpx.Client, receiver: Receiver) -> None:
    rows = [f"number {n}" for n in range(2_000)]
    asked = {"rows": rows, "shard_size": 50, "callback_url": receiver.url}
    made = http.post("/runs", json=asked).json()
    receiver.wait_for(1)
    http.post(f"/runs/{made['id']}/cancel")
    last = _events_until_end(receiver)[-1]["data"]
    assert (last["state"], last["samples"]) == ("cancelled", 2_000)
    assert last["images"] < 2_000


def test_a_wrong_address_of_a_receiver_is_named_and_nothing_is_ordered(
    gateway: GatewayProcess,
) -> None:
    with httpx.Client(base_url=f"{gateway.url}/v1", timeout=60) as http:
        wrong: list[Any] = ["ftp://a.example", "a.example", "https://u:secret@a.example", "", 7]
        wrong += ["https://a b.example", "https://ä.example", f"https://a.example/{'x' * 3_000}"]
        for address in wrong:
            answer = http.post("/runs", json={"rows": ["a"], "callback_url": address})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "callback_url")
        assert http.get("/runs").json()["data"] == []
        assert http.get("/files").json()["data"] == []


def test_a_receiver_within_the_network_gets_nothing(
    start: StartWorker, producer: Client, receiver: Receiver
) -> None:
    """The worker of this test allows no private address, as by default."""
    start().await_log("ready after")  # it makes the folder of the store
    gateway = start_gateway(start)
    with httpx.Client(base_url=f"{gateway.url}/v1", timeout=60) as http:
        made = [
            http.post("/runs", json={"rows": ["a"], "callback_url": address}).json()["id"]
            for address in (receiver.url, "http://169.254.169.254/latest")
        ]
    ends = {f"{run}.ended" for run in made}

    def given_up() -> list[CallbackEntry] | None:
        found = producer.outbox.entries(failed=True)
        return found if ends <= {each.id for each in found} else None

    assert {each.last and each.last.verdict for each in until(given_up)} == {
        DeliveryVerdict.REFUSED
    }
    assert receiver.deliveries == []
