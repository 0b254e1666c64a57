"""A request whose answer was lost is repeated, and makes no second job."""

from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from imagefleet import Client
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
        seeds = [client.images.generate(prompt="a").data[0].seed for _ in range(3)]  # type: ignore
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
