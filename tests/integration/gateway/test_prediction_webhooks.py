"""Webhooks of predictions: form, filter, signature, and what the death of a gateway costs them."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import standardwebhooks
from replicate.client import Client as ReplicateClient
from replicate.webhook import Webhooks, WebhookSigningSecret

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.shared.webhooks.signature import new_secret
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker
from tests.support.receiver import Delivery, Receiver

FLEET, GOLD = new_secret(), new_secret()


@pytest.fixture
def secrets(settings: dict[str, str]) -> None:
    settings["IMAGEFLEET_WEBHOOK_SECRETS"] = FLEET
    settings["IMAGEFLEET_WEBHOOK_TENANT_SECRETS"] = f"gold={GOLD}"
    settings["IMAGEFLEET_CALLBACK_ALLOW"] = "127.0.0.1"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver([FLEET]) as receiver:
        yield receiver


@pytest.fixture
def gateway(secrets: None, start: StartWorker) -> GatewayProcess:
    return start_gateway(start)


def _body(delivery: Delivery) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(delivery.body)
    return body


def _create(gateway: GatewayProcess, name: str, **fields: Any) -> httpx.Response:
    body = {"input": {"prompt": "a", "num_inference_steps": 8}, **fields}
    return httpx.put(f"{gateway.url}/v1/predictions/{name}", json=body, timeout=900)


def test_a_webhook_is_the_prediction_though_its_gateway_is_gone(
    gateway: GatewayProcess, start: StartWorker, receiver: Receiver
) -> None:
    created = _create(gateway, "cat", webhook=receiver.url)
    assert created.json()["webhook"] == receiver.url
    gateway.process.kill()
    start()
    deliveries = receiver.wait_for(1)
    while len({_body(each)["status"] for each in deliveries}) < 2:  # in any order
        deliveries = receiver.wait_for(len(deliveries) + 1)
    assert all(each.verified for each in deliveries)
    for each in deliveries:
        standardwebhooks.Webhook(FLEET).verify(each.body, each.headers)
    bodies = {_body(each)["status"]: _body(each) for each in deliveries}
    assert bodies.keys() == {"processing", "succeeded"}
    done = bodies["succeeded"]
    assert (done["id"], done["urls"]["get"]) == ("cat", f"{gateway.url}/v1/predictions/cat")
    assert done["created_at"] <= done["started_at"] <= done["completed_at"]
    assert done["metrics"]["predict_time"] >= 0
    other = start_gateway(start)
    shown = httpx.get(f"{other.url}/v1/predictions/cat").json()
    differing = {"output", "urls", "metrics", "started_at", "completed_at"}
    assert {name for name in shown if shown[name] != done[name]} <= differing
    [address] = done["output"]
    at_other = address.replace(gateway.url, other.url)
    assert httpx.get(at_other).status_code == 200
    forged = at_other.replace("/cat/0.png", "/dog/0.png")
    assert httpx.get(forged).status_code == 403


def test_only_the_events_of_the_filter_are_sent(
    gateway: GatewayProcess, start: StartWorker, receiver: Receiver
) -> None:
    filters = {"all": None, "s": ["start"], "o": ["output"], "l": ["logs"], "c": ["completed"]}
    for name, kinds in filters.items():
        _create(gateway, name, webhook=receiver.url, webhook_events_filter=kinds)
    _create(gateway, "old", webhook_completed=receiver.url)
    _create(gateway, "canceled", webhook=receiver.url, webhook_events_filter=["completed"])
    httpx.post(f"{gateway.url}/v1/predictions/canceled/cancel").raise_for_status()
    start(IMAGEFLEET_MODEL="fake:seconds=0.5,capacity=8")  # slow enough to report quarters
    ends = {"all", "o", "c", "old", "canceled"}
    count = len(ends) + 1
    while True:
        bodies = [_body(each) for each in receiver.wait_for(count)]
        ended = {each["id"] for each in bodies if each["completed_at"] is not None}
        started = {each["id"] for each in bodies if each["status"] == "processing"}
        if ended == ends and {"all", "s", "l"} <= started:
            break
        count = len(bodies) + 1
    assert {each["status"] for each in bodies if each["id"] == "s"} == {"processing"}
    assert all("/8" in each["logs"] for each in bodies if each["id"] == "l")
    [canceled] = [each for each in bodies if each["id"] == "canceled"]
    assert canceled["status"] == "canceled"


def test_another_gateway_may_repeat_a_request_with_a_webhook(
    gateway: GatewayProcess, start: StartWorker, receiver: Receiver
) -> None:
    other = start_gateway(start)
    answers = [_create(each, "cat", webhook=receiver.url) for each in (gateway, other)]
    assert [each.status_code for each in answers] == [201, 201]
    changed = _create(other, "cat", webhook=f"{receiver.url}/other")
    assert changed.status_code == 409


def test_a_wrong_webhook_is_named(gateway: GatewayProcess, receiver: Receiver) -> None:
    wrong: list[dict[str, Any]] = [
        {"webhook": "ftp://a.example"},
        {"webhook": "https://user:secret@a.example/"},
        {"webhook": receiver.url, "webhook_events_filter": ["born"]},
        {"webhook": receiver.url, "webhook_completed": receiver.url},
    ]
    for fields in wrong:
        answer = _create(gateway, "cat", **fields)
        assert answer.status_code == 400, fields
        assert "webhook" in answer.json()["detail"]
        assert "secret@" not in answer.text


def test_a_tenant_verifies_webhooks_with_its_own_secret(
    secrets: None, start: StartWorker, producer: Client
) -> None:
    gateway = start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="true")
    keys = ApiKeys(producer.connection)
    usual = [Scope.SUBMIT, Scope.READ]
    gold = ReplicateClient(keys.create("a", "gold", usual), base_url=gateway.url)
    tin = httpx.Client(headers={"authorization": f"Bearer {keys.create('b', 'tin', usual)}"})
    secret = gold.webhooks.default.secret()
    assert secret.key == GOLD
    url = f"{gateway.url}/v1/webhooks/default/secret"
    assert tin.get(url).status_code == 404
    operator = {"authorization": f"Bearer {keys.create('c', 'tin', list(Scope))}"}
    assert httpx.get(url, headers=operator).json() == {"key": FLEET}
    with Receiver([GOLD]) as receiver:
        start()
        prediction = gold.predictions.create(
            version="fake",
            input={"prompt": "a"},
            webhook=receiver.url,
            webhook_events_filter=["completed"],
        )
        [delivery] = receiver.wait_for(1)
    Webhooks.validate(
        headers=delivery.headers,
        body=delivery.body.decode(),
        secret=WebhookSigningSecret(key=secret.key),
    )
    assert _body(delivery)["id"] == prediction.id
    for path in ("", "/stream", "/events"):
        assert tin.get(f"{gateway.url}/v1/predictions/{prediction.id}{path}").status_code == 404
    assert tin.get(f"{gateway.url}/v1/predictions").json()["results"] == []
    assert tin.post(f"{gateway.url}/v1/predictions/{prediction.id}/cancel").status_code == 404
