"""The dataset of a run over HTTP: rejected rows, and images while it still runs."""

import io
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.batches import make_key
from tests.support.gateway import GatewayFleet, fleet_with_gateways
from tests.support.processes import until


@pytest.fixture(scope="module")
def fleet(
    redis_server: LocalRedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayFleet]:
    """A fleet whose worker needs a fifth of a second for each four images."""
    settings = {
        "IMAGEFLEET_MODEL": "fake:seconds=0.02,capacity=4",
        "IMAGEFLEET_BULK_CHECKPOINT_S": "0.2",
    }
    folder = tmp_path_factory.mktemp("datasets")
    with fleet_with_gateways(folder, redis_server.url, **settings) as fleet:
        yield fleet


@pytest.fixture
def http(fleet: GatewayFleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{fleet.open_url}/v1", timeout=60) as client:
        yield client


def _sample(http: httpx.Client, run_id: str, **asked: Any) -> list[dict[str, Any]]:
    answer = http.get(f"/runs/{run_id}/sample", params=asked)
    if answer.status_code == 409:  # it is not planned yet
        return []
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def _open(url: str) -> Image.Image:
    answer = httpx.get(url)
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(answer.content))


def _ended(http: httpx.Client, run_id: str) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        run: dict[str, Any] = http.get(f"/runs/{run_id}").json()
        return run if run["status"] in ("completed", "failed", "cancelled") else None

    return until(ended)


@pytest.mark.parametrize("dataset_format", ["webdataset", "files"])
def test_images_of_a_run_are_shown_while_it_runs_and_after(
    http: httpx.Client, dataset_format: str
) -> None:
    rows = [{"prompt": f"number {number}", "seed": number} for number in range(60)]
    body = {"rows": rows, "format": dataset_format, "shard_size": 40, "num_inference_steps": 10}
    run_id = http.post("/runs", json=body).json()["id"]
    early = until(lambda: _sample(http, run_id))
    assert http.get(f"/runs/{run_id}").json()["status"] == "in_progress"
    first = early[0]
    assert (first["key"], first["row"], first["prompt"], first["seed"]) == (
        f"{first['row']:09d}-00",
        first["row"],
        f"number {first['row']}",
        first["row"],
    )
    assert _open(first["url"]).size == (first["width"], first["height"])
    run = _ended(http, run_id)
    assert run["status"] == "completed"
    assert _open(first["url"]).size == (first["width"], first["height"])
    late = _sample(http, run_id, count=6)
    assert [each["row"] for each in late] == [0, 1, 2, 40, 41, 42]
    assert {_open(each["url"]).format for each in late} == {"PNG"}
    assert len(_sample(http, run_id, count=1)) == 1
    path = f"/runs/{run_id}/images"
    for wrong in ("00000/000000040-00", "00009/000000001-00", "00000/1", "x/y"):
        assert http.get(f"{path}/{wrong}").status_code == 404
    assert http.get(f"{path}/00000/000000001-00").headers["content-type"] == "image/png"


def test_rejected_rows_are_listed_page_by_page(http: httpx.Client) -> None:
    rows = ["a", {"prompt": ""}, {"prompt": "b", "seed": -1}, {"prompt": "c", "height": 7}]
    run_id = http.post("/runs", json={"rows": rows}).json()["id"]
    _ended(http, run_id)
    whole = http.get(f"/runs/{run_id}/rejected").json()
    assert [(each["row"], each["field"]) for each in whole["data"]] == [
        (1, "prompt"),
        (2, "seed"),
        (3, "height"),
    ]
    assert (whole["total"], whole["has_more"]) == (3, False)
    assert whole["data"][1]["value"] == "-1"
    page = http.get(f"/runs/{run_id}/rejected", params={"limit": 1, "offset": 1}).json()
    assert ([each["row"] for each in page["data"]], page["has_more"]) == ([2], True)
    assert len(_sample(http, run_id)) == 1


def test_parquet_shows_no_images_once_it_is_finished(http: httpx.Client) -> None:
    run_id = http.post("/runs", json={"rows": ["a"], "format": "parquet"}).json()["id"]
    assert _ended(http, run_id)["status"] == "completed"
    assert _sample(http, run_id) == []
    assert http.get(f"/runs/{run_id}/images/00000/000000000-00").status_code == 404


def test_the_dataset_of_another_tenant_is_unknown(fleet: GatewayFleet) -> None:
    gold, iron = (
        httpx.Client(
            base_url=f"{fleet.guarded_url}/v1",
            headers={"authorization": f"Bearer {make_key(fleet.producer, tenant)}"},
            timeout=60,
        )
        for tenant in ("gold", "iron")
    )
    with gold, iron:
        run_id = gold.post("/runs", json={"rows": ["the secret of gold"]}).json()["id"]
        _ended(gold, run_id)
        [sample] = _sample(gold, run_id)
        for path in ("rejected", "sample", f"images/{sample['shard']}/{sample['key']}"):
            assert iron.get(f"/runs/{run_id}/{path}").status_code == 404
            assert httpx.get(f"{fleet.guarded_url}/v1/runs/{run_id}/{path}").status_code == 401
        assert _open(sample["url"]).size == (64, 64)
        other = sample["url"].replace(sample["key"], "000000001-00")
        assert httpx.get(other).status_code == 403
        expired = sample["url"].replace("expires=", f"expires={int(time.time()) - 9}&old=")
        assert httpx.get(expired).status_code == 403
