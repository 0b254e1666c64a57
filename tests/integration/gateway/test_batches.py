"""Batches with OpenAI's client: outputs, errors by line, tenants, quotas, killed gateways."""

import json
from io import BytesIO

import httpx
import openai
import pytest
from PIL import Image

from imagefleet import Client
from tests.support.batches import client_of, end_of, line, lines_of, make_key, order, upload
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker, Worker, until


@pytest.fixture
def guarded(start: StartWorker, worker: Worker) -> GatewayProcess:
    """A gateway that asks for keys."""
    return start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="true")


def test_a_batch_makes_the_images_of_its_lines(gateway: GatewayProcess, producer: Client) -> None:
    client = client_of(gateway)
    lines = [
        line("circle", {"prompt": "a red circle", "seed": 7}),
        "",
        line("stars", {"prompt": "two stars", "n": 2, "size": "64x64", "user": "me"}),
        line("wrong", {"prompt": "a", "size": "72x72"}),
        line("misspelled", {"prompt": "a", "sead": 3}),
        line("in base64", {"prompt": "a", "response_format": "b64_json"}),
    ]
    made = order(client, lines, metadata={"of": "me"})
    assert made.object == "batch"
    batch = end_of(client, made.id)
    assert (batch.status, batch.metadata) == ("completed", {"of": "me"})
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (5, 2, 3)
    assert [each.id for each in client.batches.list()] == [batch.id]

    output = lines_of(client, batch.output_file_id)
    assert output.keys() == {"circle", "stars"}
    assert output["circle"]["response"]["body"]["data"][0]["seed"] == 7
    assert len(output["stars"]["response"]["body"]["data"]) == 2
    for each in output.values():
        assert each["response"]["status_code"] == 200
        for image in each["response"]["body"]["data"]:
            file = httpx.get(image["url"])  # without a key
            assert file.headers["content-type"] == "image/png"
            assert Image.open(BytesIO(file.content)).size == (64, 64)
            assert httpx.get(image["url"] + "0").status_code == 403

    errors = lines_of(client, batch.error_file_id)
    assert errors.keys() == {"wrong", "misspelled", "in base64"}
    assert {each["response"]["status_code"] for each in errors.values()} == {400}
    error = errors["misspelled"]["response"]["body"]["error"]
    assert (error["param"], "sead=3" in error["message"]) == ("sead", True)
    error = errors["wrong"]["response"]["body"]["error"]
    assert (error["param"], "it makes 64x64" in error["message"]) == ("size", True)

    shown = client.get(f"/runs/{batch.id}", cast_to=httpx.Response).json()
    run = producer.find_bulk(shown["bulk_run"])
    assert run.verify().clean
    assert run.plan.samples == 3


def test_wrong_lines_fail_a_batch_with_their_numbers(gateway: GatewayProcess) -> None:
    client = client_of(gateway)
    lines = [
        line("a", {"prompt": "a"}),
        "{no JSON",
        line("a", {"prompt": "a"}),
        line("b", {"prompt": "a"}, method="GET"),
        line("c", {"prompt": "a"}, url="/v1/chat/completions"),
        line("d", {"prompt": "a", "model": "other"}),
        line("", {"prompt": "a"}),
        "[]",
    ]
    batch = end_of(client, order(client, lines).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(each.line, each.code) for each in batch.errors.data or ()] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "invalid_method"),
        (5, "mismatched_endpoint"),
        (6, "mismatched_model"),
        (7, "invalid_custom_id"),
        (8, "invalid_json_line"),
    ]
    with pytest.raises(openai.BadRequestError, match="must not be empty"):
        order(client, [])
    for without in ([""], [line("a", {"prompt": "a", "n": 0}), line("b", {"prompt": ""})]):
        batch = end_of(client, order(client, without).id)
        assert batch.status == "failed"
        assert batch.errors is not None
        first = (batch.errors.data or [])[0]
        assert (first.line, first.param) == ((1, "n") if any(without) else (None, None))


def test_tenants_do_not_see_each_others_batches_and_their_quotas_count(
    guarded: GatewayProcess, producer: Client
) -> None:
    gold = client_of(guarded, make_key(producer, "gold", images_per_day=3, max_priority=4))
    silver = client_of(guarded, make_key(producer, "silver"))
    lines = [line("a", {"prompt": "a", "n": 2})]
    batch = end_of(gold, order(gold, lines).id)
    assert batch.status == "completed"
    [image] = [
        each["response"]["body"]["data"][0]
        for each in lines_of(gold, batch.output_file_id).values()
    ]
    path = image["url"].partition("?")[0]
    assert httpx.get(path).status_code == 401
    for key, status in ((gold.api_key, 200), (silver.api_key, 404)):
        headers = {"authorization": f"Bearer {key}"}
        assert httpx.get(path, headers=headers).status_code == status

    never = f"batch_{'0' * 32}"
    for name in (batch.id, never):
        for call in (silver.batches.retrieve, silver.batches.cancel):
            with pytest.raises(openai.NotFoundError, match=name):
                call(name)
        with pytest.raises(openai.NotFoundError):
            silver.get(f"/runs/{name}/files", cast_to=httpx.Response)
    assert list(silver.batches.list()) == []
    with pytest.raises(openai.NotFoundError):
        silver.batches.create(
            input_file_id=batch.input_file_id,
            endpoint="/v1/images/generations",
            completion_window="24h",
        )

    refused = end_of(gold, order(gold, lines).id)
    assert refused.status == "failed"
    assert refused.errors is not None
    assert refused.errors.data
    assert refused.errors.data[0].code == "quota_used"
    with pytest.raises(openai.PermissionDeniedError, match="priority=0"):
        order(gold, lines, extra_body={"priority": 0})
    for wrong in ({"endpoint": "/v1/embeddings"}, {"completion_window": "soon"}):
        with pytest.raises(openai.BadRequestError):
            order(gold, lines, **wrong)


def test_a_cancelled_batch_has_the_images_that_were_there(
    start: StartWorker, producer: Client
) -> None:
    worker = start(IMAGEFLEET_MODEL="fake:seconds=0.5,capacity=8")
    worker.await_log("ready after")
    client = client_of(start_gateway(start))
    made = order(client, (line(f"{n}", {"prompt": f"number {n}"}) for n in range(400)))
    until(lambda: (client.batches.retrieve(made.id).request_counts or made).completed > 100)
    assert client.batches.cancel(made.id).status == "cancelling"
    batch = end_of(client, made.id)
    assert batch.status == "cancelled"
    counts = batch.request_counts
    assert counts is not None
    assert counts.total == counts.completed + counts.failed == 400
    assert counts.completed >= 100
    output, errors = (
        lines_of(client, each) for each in (batch.output_file_id, batch.error_file_id)
    )
    assert output.keys() | errors.keys() == {f"{n}" for n in range(400)}
    assert {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}
    assert client.batches.cancel(made.id).status == "cancelled"


def test_a_cancelled_batch_has_the_images_of_an_unfinished_shard(
    start: StartWorker, producer: Client
) -> None:
    worker = start(IMAGEFLEET_MODEL="fake:seconds=0.3,capacity=4")
    worker.await_log("ready after")
    client = client_of(start_gateway(start))
    bodies = [{"prompt": f"number {n}", "n": 1 + n % 2} for n in range(60)]  # 90 images, one shard
    made = order(client, (line(f"{n}", body) for n, body in enumerate(bodies)))
    until(lambda: (client.batches.retrieve(made.id).request_counts or made).completed > 8)
    seen = client.batches.cancel(made.id).request_counts
    batch = end_of(client, made.id)
    counts = batch.request_counts
    assert counts is not None
    assert seen is not None
    assert 60 > counts.completed >= seen.completed - 4  # requests with a part of their images
    output = lines_of(client, batch.output_file_id)
    assert len(output) == counts.completed
    assert len(lines_of(client, batch.error_file_id)) == counts.failed == 60 - counts.completed
    for custom_id, each in output.items():
        images = each["response"]["body"]["data"]
        assert len(images) == 1 + int(custom_id) % 2
        for image in images:
            file = httpx.get(image["url"])  # without a key
            assert (file.status_code, file.headers["content-type"]) == (200, "image/png")
            written = json.loads(Image.open(BytesIO(file.content)).info["imagefleet"])
            assert (written["prompt"], written["seed"]) == (f"number {custom_id}", image["seed"])
    run = client.get(f"/runs/{batch.id}", cast_to=httpx.Response).json()["bulk_run"]
    producer.find_bulk(run).resume(max_failures=None, priority=3)
    assert producer.find_bulk(run).wait(timeout=900).state == "succeeded"
    assert producer.find_bulk(run).verify().clean
    for each in output.values():
        for image in each["response"]["body"]["data"]:
            assert httpx.get(image["url"]).status_code == 200


def test_another_gateway_goes_on_with_the_batches_of_a_killed_one(
    start: StartWorker, worker: Worker, producer: Client
) -> None:
    first = start_gateway(start)
    client = client_of(first)
    bodies = [{"prompt": f"number {n}"} for n in range(1_000)]
    running = order(client, (line(f"{n}", body) for n, body in enumerate(bodies[:100])))
    until(lambda: client.batches.retrieve(running.id).status != "validating")
    file_id = upload(client, (line(f"{n}", body) for n, body in enumerate(bodies)))
    created = client.batches.create(
        input_file_id=file_id, endpoint="/v1/images/generations", completion_window="24h"
    )
    first.process.kill()
    client = client_of(start_gateway(start))
    for batch_id, requests in ((running.id, 100), (created.id, 1_000)):
        batch = end_of(client, batch_id)
        assert (batch.status, batch.error_file_id) == ("completed", None)
        output = lines_of(client, batch.output_file_id)
        assert output.keys() == {f"{n}" for n in range(requests)}
        shown = client.get(f"/runs/{batch.id}", cast_to=httpx.Response).json()
        report = producer.find_bulk(shown["bulk_run"]).verify()
        assert (report.clean, report.present) == (True, requests)


def test_a_repeated_request_is_the_same_batch(gateway: GatewayProcess) -> None:
    client = client_of(gateway)
    file_id = upload(client, [line("a", {"prompt": "a"})])
    body = {
        "input_file_id": file_id,
        "endpoint": "/v1/images/generations",
        "completion_window": "24h",
    }
    url, headers = f"{gateway.url}/v1/batches", {"idempotency-key": "once"}
    made = [httpx.post(url, json=body, headers=headers).json()["id"] for _ in range(3)]
    assert len(set(made)) == 1
    other = httpx.post(url, json={**body, "completion_window": "48h"}, headers=headers)
    assert other.status_code == 409
    assert end_of(client, made[0]).status == "completed"
    assert len(list(client.batches.list())) == 1
