"""Runs are verified and repaired over HTTP, by whichever gateway lives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from imagefleet.producer.gateway.access.caller import LOOPBACK
from imagefleet.producer.gateway.batches.run_keeper import RunKeeper
from imagefleet.producer.gateway.batches.verification import VerificationState
from imagefleet.producer.gateway.datasets.verifier import Verifier
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.batches import make_key
from tests.support.gateway import GatewayFleet, fleet_with_gateways
from tests.support.processes import until

Body = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verification")


@pytest.fixture(scope="module")
def fleet(redis_server: LocalRedisServer, folder: Path) -> Iterator[GatewayFleet]:
    with fleet_with_gateways(folder, redis_server.url) as fleet:
        yield fleet


@pytest.fixture
def gateway(redis_server: LocalRedisServer, fleet: GatewayFleet) -> Iterator[Gateway]:
    """Return a gateway of the fleet that serves nothing."""
    namespace = fleet.producer.settings.namespace
    settings = GatewaySettings.load(redis_url=redis_server.url, namespace=namespace)
    gateway = Gateway(settings, require_keys=False)
    gateway.secret.load()
    yield gateway
    gateway.close()


@pytest.fixture
def http(fleet: GatewayFleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{fleet.open_url}/v1", timeout=60) as client:
        yield client


def _made(http: httpx.Client, **fields: Any) -> Body:
    """Return a run that has ended."""
    body = {"rows": [f"number {number}" for number in range(6)], "shard_size": 2, **fields}
    run_id = http.post("/runs", json=body).json()["id"]

    def ended() -> Body | None:
        run: Body = http.get(f"/runs/{run_id}").json()
        return run if run["status"] in ("completed", "failed", "cancelled") else None

    return until(ended)


def _verified(http: httpx.Client, run_id: str, how: str = "verify") -> Body:
    """Verify a run, or repair it, and return what was found."""
    begun = http.post(f"/runs/{run_id}/{how}")
    assert begun.status_code == 202, begun.text
    assert begun.json()["verification"]["state"] in ("queued", "running")

    def ended() -> Body | None:
        found: Body = http.get(f"/runs/{run_id}").json()["verification"]
        return found if found["state"] in ("done", "failed") else None

    return until(ended)


def _files(folder: Path, run_id: str, pattern: str) -> list[Path]:
    found = sorted(folder.glob(f"store/runs/*/{run_id}/{pattern}"))
    assert found, pattern
    return found


@pytest.mark.parametrize("dataset_format", ["webdataset", "files"])
def test_a_damaged_run_is_found_and_repaired(
    http: httpx.Client, folder: Path, dataset_format: str
) -> None:
    run = _made(http, format=dataset_format)
    assert run["verification"] is None
    whole = _verified(http, run["id"])
    assert (whole["state"], whole["clean"], whole["problems"]) == ("done", True, [])
    assert (whole["shards"], whole["checked"]) == (3, 3)
    assert (whole["planned"], whole["present"], whole["failed"]) == (6, 6, 0)
    pattern = "00001.tar" if dataset_format == "webdataset" else "00001/*.png"
    damaged = _files(folder, run["id"], pattern)[0]
    content = damaged.read_bytes()
    damaged.unlink()
    found = _verified(http, run["id"])
    assert (found["clean"], found["repair"], found["sent_again"]) == (False, False, 0)
    assert found["problems"][0]["shard"] == "00001"
    assert found["problems"][0]["what"] == "missing file"
    assert found["problem_count"] == len(found["problems"])
    repaired = _verified(http, run["id"], "repair")
    assert (repaired["state"], repaired["clean"], repaired["sent_again"]) == ("done", True, 1)
    assert repaired["ended_at"] > repaired["requested_at"]
    assert damaged.read_bytes() == content
    after = http.get(f"/runs/{run['id']}").json()
    assert (after["status"], after["rows"]) == ("completed", run["rows"])


def test_what_no_repair_can_mend_stays_named(http: httpx.Client, folder: Path) -> None:
    run = _made(http)
    _files(folder, run["id"], "00000.tar")[0].with_name("00009.tar").write_bytes(b"foreign")
    found = _verified(http, run["id"], "repair")
    assert (found["state"], found["clean"], found["sent_again"]) == ("done", False, 0)
    assert [each["what"] for each in found["problems"]] == ["unplanned file"]
    _files(folder, run["id"], "plan/plan.json")[0].unlink()
    gone = _verified(http, run["id"])  # the gateways remember the plan for a while
    assert gone["state"] in ("done", "failed")


def test_only_a_run_that_has_ended_is_verified_and_only_a_completed_one_repaired(
    http: httpx.Client,
) -> None:
    table = {"rows": ["a"] * 400, "num_inference_steps": 100, "shard_size": 200}
    run_id = http.post("/runs", json=table).json()["id"]
    for how, code in (("verify", "not_ended"), ("repair", "not_completed")):
        refused = http.post(f"/runs/{run_id}/{how}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, code)
    until(lambda: http.get(f"/runs/{run_id}").json()["status"] == "in_progress")
    http.post(f"/runs/{run_id}/cancel").raise_for_status()
    until(lambda: http.get(f"/runs/{run_id}").json()["status"] == "cancelled")
    assert http.post(f"/runs/{run_id}/repair").status_code == 409
    found = _verified(http, run_id)
    assert {each["what"] for each in found["problems"]} == {"unfinished"}
    unplanned = _made(http, rows=[{"prompt": ""}])
    assert unplanned["status"] == "failed"
    assert http.post(f"/runs/{unplanned['id']}/verify").status_code == 409


def test_the_runs_of_another_tenant_are_unknown(fleet: GatewayFleet) -> None:
    def sender(tenant: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {make_key(fleet.producer, tenant)}"}
        return httpx.Client(base_url=f"{fleet.guarded_url}/v1", headers=headers, timeout=60)

    with sender("gold") as gold, sender("iron") as iron:
        run = _made(gold)
        for how in ("verify", "repair"):
            assert iron.post(f"/runs/{run['id']}/{how}").status_code == 404
        assert gold.get(f"/runs/{run['id']}").json()["verification"] is None


def test_another_gateway_goes_on_with_what_a_killed_one_had_begun(
    gateway: Gateway, http: httpx.Client
) -> None:
    keeper = RunKeeper(gateway)
    run = _made(http)
    record = keeper.orders.find(LOOPBACK, run["id"], "run")
    killed = Verifier(gateway, keeper, claim_s=0.5)

    def claimed() -> str | None:  # the gateways of the fleet may be faster
        killed.request(record, repair=False)
        return killed._due.claim()

    until(claimed)
    assert http.get(f"/runs/{run['id']}").json()["verification"]["state"] == "queued"
    until(lambda: http.get(f"/runs/{run['id']}").json()["verification"]["state"] == "done")
    ends = keeper.orders.find(LOOPBACK, run["id"], "run").verification
    assert ends is not None
    assert ends.is_clean


def test_a_verification_whose_files_end_each_gateway_is_given_up(
    gateway: Gateway, http: httpx.Client
) -> None:
    keeper = RunKeeper(gateway)
    run = _made(http)
    assert _verified(http, run["id"])["clean"]
    record = keeper.orders.find(LOOPBACK, run["id"], "run")
    assert record.verification is not None
    tried = record.verification.model_copy(update={"tries": 5, "state": VerificationState.RUNNING})
    keeper.orders.change(run["id"], verification=tried)
    Verifier(gateway, keeper)._due.put(f"{run['id']} {tried.id}", 0.0)
    found = until(
        lambda: (now := http.get(f"/runs/{run['id']}").json()["verification"])["error"] and now
    )
    assert (found["state"], found["clean"]) == ("failed", None)
    assert "5 attempts" in found["error"]
