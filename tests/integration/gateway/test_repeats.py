"""A request whose answer was lost is repeated, and makes no second job."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import httpx
import openai
import pytest
import redis
from PIL import Image

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.producer.gateway.redis_keys import rates_prefix
from tests.support.dropping_proxy import DroppingProxy
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker, Worker


def _png() -> bytes:
    file = BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    return file.getvalue()


def _generate(url: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    body = {"prompt": "a", **body}
    return httpx.post(f"{url}/v1/images/generations", json=body, headers=headers, timeout=900)


@pytest.mark.parametrize("of_edits", [False, True])
def test_openai_repeats_a_request_and_one_image_is_made(
    gateway: GatewayProcess, producer: Client, *, of_edits: bool
) -> None:
    with (
        DroppingProxy(gateway.url, drops=2) as proxy,
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="any") as client,
    ):
        if of_edits:
            client.images.edit(prompt="a", image=_png())
        else:
            client.images.generate(prompt="a")
    assert proxy.dropped == 2
    assert len(list(producer.jobs())) == 1


def test_requests_of_openai_that_are_equal_and_not_repeated_are_jobs_of_their_own(
    gateway: GatewayProcess, producer: Client
) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any") as client:
        seeds = [client.images.generate(prompt="a").data[0].seed for _ in range(3)]
    assert len(set(seeds)) == 3
    assert len(list(producer.jobs())) == 3


def test_an_idempotency_key_is_one_job_at_every_gateway(
    start: StartWorker, gateway: GatewayProcess, producer: Client
) -> None:
    other = start_gateway(start)
    key = {"idempotency-key": "order 7"}
    first, second = (_generate(each.url, key).json() for each in (gateway, other))
    assert first["data"] == second["data"]
    assert len(list(producer.jobs())) == 1
    refused = _generate(gateway.url, key, prompt="b")
    assert refused.status_code == 409
    assert "Idempotency-Key" in refused.json()["error"]["message"]
    assert _generate(gateway.url, {"idempotency-key": "order 8"}).json()["id"] != first["id"]
    assert _generate(gateway.url, {"idempotency-key": "x" * 256}).status_code == 400


def test_equal_requests_without_any_header_are_one_job_for_a_while(
    gateway: GatewayProcess, producer: Client
) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: _generate(gateway.url).json()["id"], range(8)))
    assert len(set(answers)) == 1
    assert _generate(gateway.url, prompt="b").json()["id"] not in answers
    assert len(list(producer.jobs())) == 2


def test_an_equal_request_after_an_answer_is_a_new_job_also_after_a_failure(
    start: StartWorker, worker: Worker, producer: Client
) -> None:
    forgetful = start_gateway(start, IMAGEFLEET_HTTP_REPEAT_S="0")
    ids = {_generate(forgetful.url, prompt="c").json()["id"] for _ in range(2)}
    assert len(ids) == 2
    failed = [_generate(forgetful.url, ttl=0.00001) for _ in range(2)]
    assert [each.json()["error"]["code"] for each in failed] == ["expired"] * 2
    assert len(list(producer.jobs())) == 4


def test_a_client_that_counts_its_tries_may_repeat_late_and_mixes_with_no_other(
    start: StartWorker, worker: Worker, producer: Client
) -> None:
    forgetful = start_gateway(start, IMAGEFLEET_HTTP_REPEAT_S="0")

    def make(tries: str | None) -> str:
        headers = None if tries is None else {"x-stainless-retry-count": tries}
        return str(_generate(forgetful.url, headers).json()["id"])

    first = make("0")
    assert [make("1"), make("2")] == [first] * 2
    assert len({first, make(None), make(None), make("0")}) == 4
    assert len(list(producer.jobs())) == 4


def test_an_idempotency_key_of_a_run_belongs_to_its_rows(gateway: GatewayProcess) -> None:
    url, key = f"{gateway.url}/v1/runs", {"idempotency-key": "run 7"}
    answers = [
        httpx.post(url, json={"rows": rows}, headers=key, timeout=300)
        for rows in (["a"], ["a"], ["b"])
    ]
    assert [each.status_code for each in answers] == [200, 200, 409]
    assert answers[0].json()["id"] == answers[1].json()["id"]


def test_a_request_that_is_repeated_after_a_refusal_is_a_new_job(
    start: StartWorker, worker: Worker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    key = ApiKeys(producer.connection).create("a", "gold", [Scope.SUBMIT], per_minute=1)
    gateways = [start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="true") for _ in range(2)]

    def make(tries: int, gateway: int, *, after_a_minute: bool = True) -> tuple[int, str]:
        if after_a_minute:
            for name in client.scan_iter(f"{rates_prefix(namespace)}:*"):
                client.delete(name)
        headers = {"x-stainless-retry-count": str(tries), "x-api-key": key}
        answer = _generate(gateways[gateway].url, headers)
        return answer.status_code, str(answer.json().get("id"))

    first = make(0, 0)
    assert make(1, 1) == first  # its answer was lost
    assert make(0, 0, after_a_minute=False)[0] == 429
    second = make(1, 1)
    assert second[0] == 200
    assert second != first
    assert make(2, 0) == second
    assert len(list(producer.jobs())) == 2


def test_a_body_that_did_not_come_in_time_was_refused(
    start: StartWorker, worker: Worker, producer: Client
) -> None:
    hasty = start_gateway(start, IMAGEFLEET_HTTP_BODY_TIMEOUT_S="0.5")
    body = json.dumps({"prompt": "a"}).encode()

    def make(tries: int, sent: bytes) -> bytes:
        head = (
            "POST /v1/images/generations HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            f"content-type: application/json\r\nx-stainless-retry-count: {tries}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        port = int(hasty.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
            connection.sendall(head.encode() + sent)
            return b"".join(iter(lambda: connection.recv(65_536), b""))

    assert b"200 OK" in make(0, body)
    assert b"408 " in make(0, body[:-1])
    assert b"200 OK" in make(1, body)
    assert len(list(producer.jobs())) == 2
