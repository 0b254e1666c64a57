"""Replicate's own client against a gateway, and what it does not send itself."""

import asyncio
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from replicate.client import Client as ReplicateClient
from replicate.exceptions import ModelError, ReplicateError

from imagefleet import Client
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker, Worker, until

LONG = {"prompt": "a", "num_inference_steps": 100}
"""With the worker below, this takes seconds."""


@pytest.fixture
def their_client(gateway: GatewayProcess) -> ReplicateClient:
    return ReplicateClient(api_token="any", base_url=gateway.url)


@pytest.fixture
def http(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{gateway.url}/v1", timeout=900) as client:
        yield client


@pytest.fixture
def without_worker(start: StartWorker) -> Iterator[httpx.Client]:
    """A gateway whose predictions stay in the queue."""
    with httpx.Client(base_url=f"{start_gateway(start).url}/v1", timeout=900) as client:
        yield client


def _ended(http: httpx.Client, prediction_id: str) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        found: dict[str, Any] = http.get(f"/predictions/{prediction_id}").json()
        return found if found["completed_at"] else None

    return until(find)


def test_run_returns_addresses_of_the_images(
    their_client: ReplicateClient, producer: Client
) -> None:
    inputs = {"prompt": "a red circle", "num_outputs": 2, "seed": 7, "output_format": "jpg"}
    output = their_client.run("stability-ai/fake", input=inputs)
    images = [Image.open(BytesIO(httpx.get(str(each)).content)) for each in output]
    assert [(each.format, each.size) for each in images] == [("JPEG", (64, 64))] * 2
    [job] = producer.jobs()
    assert (job.request.num_images_per_prompt, job.request.seed) == (2, 7)
    version = "0" * 64
    [address] = their_client.run(f"any/fake:{version}", input={"prompt": "a"})
    assert str(address).startswith("http://")


def test_a_prediction_shows_the_job_as_replicate_does(
    their_client: ReplicateClient, http: httpx.Client
) -> None:
    created = their_client.predictions.create(
        model="imagefleet/fake", input={"prompt": "a", "prompt_strength": None}
    )
    assert created.output is None
    created.wait()
    shown = http.get(f"/predictions/{created.id}").json()
    assert shown["input"] == {"prompt": "a", "seed": shown["input"]["seed"], "model": "fake"}
    assert (shown["model"], shown["version"]) == ("imagefleet/fake", "0" * 64)
    assert created.status == shown["status"] == "succeeded"
    assert shown["created_at"] <= shown["started_at"] <= shown["completed_at"]
    assert 0 < shown["metrics"]["predict_time"] <= shown["metrics"]["total_time"]
    assert not shown["data_removed"]
    assert shown["error"] is None
    assert created.progress is not None
    assert created.progress.percentage == 1.0
    assert shown["urls"]["get"] == f"{http.base_url}predictions/{created.id}"


def test_a_file_to_start_from_is_uploaded(
    their_client: ReplicateClient, producer: Client, tmp_path: Path
) -> None:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    for image in (tmp_path / "red.png", (tmp_path / "red.png").open("rb")):
        inputs = {"prompt": "a", "image": image, "prompt_strength": 0.5}
        assert their_client.run("imagefleet/fake", input=inputs)
    assert [each.request.strength for each in producer.jobs()] == [0.5, 0.5]


def test_a_failed_prediction_says_why(their_client: ReplicateClient) -> None:
    inputs = {"prompt": "a", "image": "http://127.0.0.1:9/no.png", "prompt_strength": 0.5}
    with pytest.raises(ModelError, match=r"127\.0\.0\.1"):
        their_client.run("imagefleet/fake", input=inputs)


def test_a_wrong_input_is_named(their_client: ReplicateClient, producer: Client) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"prompt": "a", "num_ouputs": 2}, "num_ouputs=2"),
        ({"prompt": "a", "id": "x"}, "id='x'"),
        ({"prompt": "a", "callback_url": "http://a.example/"}, "webhook"),
        ({"prompt": "a", "num_outputs": 2, "num_images_per_prompt": 3}, "num_images_per_prompt"),
        ({"prompt": "a", "seed": -1}, "seed=-1"),
        ({"prompt": "a", "num_outputs": 0}, "num_outputs=0"),
        ({"prompt": "a", "output_format": "gif"}, "output_format='gif'"),
        ({"prompt": "a", "model": "other"}, "model='other'"),
        ({}, "prompt"),
    ]
    for inputs, named in wrong:
        with pytest.raises(ReplicateError) as caught:
            their_client.predictions.create(model="imagefleet/fake", input=inputs)
        assert caught.value.status == 400
        assert named in (caught.value.detail or "")
    assert not list(producer.jobs())
    assert not their_client.predictions.list().results


def test_an_error_is_a_problem_of_rfc_7807(http: httpx.Client) -> None:
    answers = [
        http.get("/predictions/nobody"),
        http.post("/models/any/other/predictions", json={"input": {"prompt": "a"}}),
        http.post("/predictions", json={"input": {"prompt": "a"}, "no_such": 1}),
        http.post("/predictions", json={"version": "any/fake:beef", "input": {"prompt": "a"}}),
        http.post("/predictions", json={"input": {"prompt": "a"}}, headers={"prefer": "wait=61"}),
        http.post("/predictions", json={"input": {"prompt": "a"}}, headers={"cancel-after": "x"}),
        http.get("/predictions", params={"cursor": "x"}),
        http.put("/predictions/-x", json={"input": {"prompt": "a"}}),
        http.delete("/predictions/x"),
    ]
    assert [each.status_code for each in answers] == [404, 400, 400, 400, 400, 400, 400, 400, 405]
    for answer in answers:
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == answer.status_code
        assert problem["title"]
        assert problem["detail"]


def test_the_same_id_with_the_same_input_is_the_same_prediction(
    http: httpx.Client, start: StartWorker, producer: Client
) -> None:
    body = {"version": "imagefleet/fake", "input": {"prompt": "a"}}
    headers = {"prefer": "wait", "cancel-after": "10m"}
    first = http.put("/predictions/cat-1", json=body, headers=headers).json()
    other = start_gateway(start)
    again = httpx.put(f"{other.url}/v1/predictions/cat-1", json=body, headers=headers, timeout=900)
    assert (again.status_code, first["status"]) == (201, "succeeded")
    assert again.json()["input"] == first["input"]
    body["input"] = {"prompt": "b"}
    assert http.put("/predictions/cat-1", json=body, headers=headers).status_code == 409
    assert len(list(producer.jobs())) == 1
    assert [each["id"] for each in http.get("/predictions").json()["results"]] == ["cat-1"]


def test_an_idempotency_key_names_a_prediction(http: httpx.Client) -> None:
    def create(headers: dict[str, str]) -> str:
        answer = http.post("/predictions", json={"input": {"prompt": "a"}}, headers=headers)
        return str(answer.json()["id"])

    assert create({"idempotency-key": "k"}) == create({"idempotency-key": "k"})
    assert create({}) != create({})


def test_a_wait_that_is_over_answers_that_the_prediction_starts(
    without_worker: httpx.Client,
) -> None:
    body = {"input": {"prompt": "a"}}
    started = time.monotonic()
    answer = without_worker.post("/predictions", json=body, headers={"prefer": "wait=1"})
    assert time.monotonic() - started >= 1
    assert (answer.status_code, answer.json()["status"]) == (201, "starting")


def test_a_gateway_that_ends_answers_with_the_prediction(start: StartWorker) -> None:
    gateway = start_gateway(start)

    async def create() -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=f"{gateway.url}/v1", timeout=900) as client:
            body, headers = {"input": {"prompt": "a"}}, {"prefer": "wait"}
            asked = asyncio.create_task(client.put("/predictions/x", json=body, headers=headers))
            while (await client.get("/predictions/x")).status_code != 200:
                await asyncio.sleep(0.02)
            gateway.process.process.terminate()
            answer: dict[str, Any] = (await asked).json()
            return answer

    assert asyncio.run(create())["status"] == "starting"
    other = start_gateway(start)
    assert httpx.get(f"{other.url}/v1/predictions/x").status_code == 200


def test_pages_are_stable_while_predictions_come(without_worker: httpx.Client) -> None:
    def put(number: int) -> None:
        body = {"input": {"prompt": "a"}}
        without_worker.put(f"/predictions/p{number}", json=body).raise_for_status()

    def page(url: str) -> tuple[list[str], dict[str, Any]]:
        answer = without_worker.get(url).json()
        return [each["id"] for each in answer["results"]], answer

    for number in range(250):
        put(number)
    first, links = page("/predictions")
    assert links["previous"] is None
    put(250)
    second, links_of_second = page(links["next"])
    third, links_of_third = page(links_of_second["next"])
    assert first + second + third == [f"p{number}" for number in reversed(range(250))]
    assert links_of_third["next"] is None
    assert page(links_of_third["previous"])[0] == second
    assert page(links_of_second["previous"])[0] == first
    assert page(page(links_of_second["previous"])[1]["previous"])[0] == ["p250"]


def test_a_queued_prediction_is_canceled_at_once(
    without_worker: httpx.Client, start: StartWorker
) -> None:
    client = ReplicateClient(
        api_token="any", base_url=str(without_worker.base_url).removesuffix("/v1/")
    )
    prediction = client.predictions.create(version="fake", input={"prompt": "a"})
    prediction.cancel()
    assert prediction.status == "canceled"
    prediction.reload()
    assert prediction.status == "canceled"


def test_a_prediction_is_canceled_in_time_though_its_gateway_is_gone(
    start: StartWorker, settings: dict[str, str]
) -> None:
    settings["IMAGEFLEET_MODEL"] = "fake:seconds=1,capacity=1"
    worker = start()
    worker.await_log("ready after")
    first, second = start_gateway(start), start_gateway(start)
    headers = {"cancel-after": "4s"}
    for name in ("running", "waiting"):
        url = f"{first.url}/v1/predictions/{name}"
        httpx.put(url, json={"input": LONG}, headers=headers).raise_for_status()
    first.process.kill()
    with httpx.Client(base_url=f"{second.url}/v1") as http:
        ended = [_ended(http, name) for name in ("running", "waiting")]
    assert [each["status"] for each in ended] == ["canceled", "canceled"]
    assert ended[0]["started_at"] is not None
    assert all(each["metrics"]["total_time"] >= 4 for each in ended)


def test_async_clients_wait_without_a_thread_each(gateway: GatewayProcess, worker: Worker) -> None:
    async def run() -> list[Any]:
        client = ReplicateClient(api_token="any", base_url=gateway.url)
        runs = (client.async_run("any/fake", input={"prompt": "a"}) for _ in range(20))
        return list(await asyncio.gather(*runs))

    outputs = asyncio.run(run())
    assert len({each[0] for each in outputs}) == 20
