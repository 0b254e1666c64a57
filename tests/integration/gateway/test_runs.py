"""Runs of datasets over HTTP: ordered, watched, stopped, downloaded, and closed to others."""

import hashlib
import io
import json
import tarfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from imagefleet import Client
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.batches import URL, client_of, end_of, line, lines_of, make_key, order
from tests.support.gateway import GatewayFleet, GatewayProcess, start_gateway
from tests.support.processes import StartWorker, Worker, until


@pytest.fixture
def http(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{gateway.url}/v1", timeout=60) as client:
        yield client


def _png() -> bytes:
    png = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(png, "PNG")
    return png.getvalue()


def _ended(http: httpx.Client, run_id: str) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        run: dict[str, Any] = http.get(f"/runs/{run_id}").json()
        return run if run["status"] in ("completed", "failed", "cancelled") else None

    return until(ended)


def test_a_run_is_ordered_watched_and_downloaded(http: httpx.Client, producer: Client) -> None:
    rows = ["a red circle", {"prompt": "a star", "seed": 7, "mine": "x"}, {"prompt": ""}]
    options = {"num_images_per_prompt": 2, "shard_size": 2}
    made = http.post("/runs", json={"rows": rows, **options}).json()
    with http.stream("GET", f"/runs/{made['id']}/events") as stream:
        events = "".join(stream.iter_text()).split("\n\n")
    assert events[-2].startswith("event: done")
    last = json.loads(events[-3].partition("data: ")[2])
    assert (last["status"], last["rows"]) == (
        "completed",
        {"total": 3, "completed": 2, "failed": 1, "rejected": 1},
    )
    assert last["images"] == {"total": 4, "completed": 4, "failed": 0}
    [error] = last["errors"]
    assert (error["param"], error["message"]) == ("prompt", "row 2: prompt='': must not be empty")
    files = http.get(f"/runs/{made['id']}/files").json()["data"]
    assert [each["id"] for each in files] == [
        "00000.jsonl",
        "00000.tar",
        "00001.jsonl",
        "00001.tar",
    ]
    for each in files:
        content = httpx.get(each["url"]).content  # without a key
        assert hashlib.sha256(content).hexdigest() == each["sha256"]
        if each["id"].endswith(".tar"):
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                assert len(archive.getnames()) == 6
    after = http.get(f"/runs/{made['id']}/files", params={"after": "00000.tar", "limit": 1}).json()
    assert ([each["id"] for each in after["data"]], after["has_more"]) == (["00001.jsonl"], True)
    rejected = http.get(f"/runs/{made['id']}/files/plan/rejected.jsonl").json()
    assert rejected["row"] == 2
    assert producer.find_bulk(last["bulk_run"]).verify().clean
    for key in ("../a", "%2e%2e/plan/plan.json", "00000.png", "plan/00000.jsonl"):
        assert http.get(f"/runs/{made['id']}/files/{key}").status_code == 404


def test_a_run_is_made_of_a_file_and_can_be_cancelled(http: httpx.Client) -> None:
    table = "prompt,seed\n" + "".join(f"number {n},{n}\n" for n in range(2_000))
    upload = {"file": ("rows.csv", table.encode())}
    file = http.post("/files", files=upload, data={"purpose": "user_data"}).json()
    made = http.post("/runs", json={"input_file_id": file["id"], "shard_size": 50}).json()
    until(lambda: http.get(f"/runs/{made['id']}").json()["rows"]["completed"] > 0)
    assert http.post(f"/runs/{made['id']}/cancel").json()["status"] == "cancelling"
    run = _ended(http, made["id"])
    assert run["status"] == "cancelled"
    assert run["rows"]["total"] == 2_000
    assert [each["id"] for each in http.get("/runs").json()["data"]] == [made["id"]]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"rows": []}, "rows"),
        ({"rows": "a"}, "rows"),
        ({}, "rows"),
        ({"rows": ["a"], "wildcards": "/etc"}, "wildcards"),
        ({"rows": ["a"], "upload_files": True}, "upload_files"),
        ({"rows": ["a"], "format": "zip"}, "format"),
        ({"rows": ["a"], "num_images_per_prompt": 1_000}, "num_images_per_prompt"),
    ],
)
def test_a_wrong_option_of_a_run_is_named(
    fleet: GatewayFleet, fields: dict[str, Any], field: str
) -> None:
    answer = httpx.post(f"{fleet.open_url}/v1/runs", json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_no_row_reads_files_or_images_of_others(
    start: StartWorker, worker: Worker, producer: Client, tmp_path: Path
) -> None:
    gateway = start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="true")
    gold, silver = (make_key(producer, each) for each in ("gold", "silver"))
    file = client_of(gateway, gold).files.create(file=("a.png", _png()), purpose="vision")
    secret = tmp_path / "secret.png"
    secret.write_bytes(_png())
    job = producer.submit("a", id="other")
    job.result(timeout=900)
    images = [str(secret), "jobs/other/0.png", file.id, "./secret.png", f"file://{secret}"]
    with httpx.Client(
        base_url=f"{gateway.url}/v1", headers={"authorization": f"Bearer {silver}"}, timeout=60
    ) as http:
        rows: list[dict[str, Any]] = [{"prompt": "a", "image": each} for each in images]
        rows.append({"prompt": "a", "photo": {"path": str(secret)}})
        rows.append({"prompt": "the only one"})
        made = http.post("/runs", json={"rows": rows}).json()
        run = _ended(http, made["id"])
        assert run["rows"] == {"total": 7, "completed": 2, "failed": 5, "rejected": 5}
        whole = http.post("/runs", json={"rows": ["a"], "image": "jobs/other/0.png"})
        assert whole.status_code == 400
        assert whole.json()["error"]["param"] == "image"


def test_a_watch_ends_with_an_event_if_the_gateway_ends(start: StartWorker) -> None:
    start(IMAGEFLEET_MODEL="fake:seconds=5,capacity=1").await_log("ready after")
    gateway = start_gateway(start)
    with httpx.Client(base_url=f"{gateway.url}/v1", timeout=60) as http:
        made = http.post("/runs", json={"rows": ["a"] * 50}).json()
        with http.stream("GET", f"/runs/{made['id']}/events") as stream:
            texts = stream.iter_text()
            assert next(texts).startswith("event: run")
            gateway.process.process.terminate()
            assert "event: stopping" in "".join(texts)
    gateway.process.wait(10)


def test_a_watch_ends_with_an_event_if_redis_is_away(
    start: StartWorker, own_redis: LocalRedisServer, tmp_path: Path
) -> None:
    store = tmp_path / "runs"
    store.mkdir()
    gateway = start_gateway(
        start, IMAGEFLEET_REDIS_URL=own_redis.url, IMAGEFLEET_STORAGE_URL=f"file://{store}"
    )
    with httpx.Client(base_url=f"{gateway.url}/v1", timeout=900) as http:
        made = http.post("/runs", json={"rows": ["a"]}).json()
        with http.stream("GET", f"/runs/{made['id']}/events") as stream:
            texts = stream.iter_text()
            assert next(texts).startswith("event: run")
            own_redis.kill()
            *_, last = "".join(texts).strip().split("\n\n")
    name, data = last.splitlines()
    assert name == "event: stopping"
    assert "Redis" in json.loads(data.removeprefix("data: "))["message"]


def test_a_batch_of_edits_starts_from_images(gateway: GatewayProcess) -> None:
    client = client_of(gateway)
    mask = io.BytesIO()
    Image.new("RGBA", (64, 64), (0, 0, 0, 0)).save(mask, "PNG")
    url = f"data:image/png;base64,{b64encode(_png()).decode()}"
    mask_url = f"data:image/png;base64,{b64encode(mask.getvalue()).decode()}"
    file = client.files.create(file=("a.png", _png()), purpose="vision")
    bodies: dict[str, dict[str, Any]] = {
        "data": {"prompt": "a", "images": [{"image_url": url}], "mask": {"image_url": mask_url}},
        "file": {"prompt": "a", "images": [{"image_url": file.id}]},
        "none": {"prompt": "a"},
    }
    edits = URL.replace("generations", "edits")
    lines = [line(name, body, url=edits) for name, body in bodies.items()]
    batch = end_of(client, order(client, lines, endpoint=edits).id)
    assert batch.status == "completed"
    assert lines_of(client, batch.output_file_id).keys() == {"data", "file"}
    assert lines_of(client, batch.error_file_id).keys() == {"none"}
