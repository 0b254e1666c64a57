"""Operators see the fleet and what it gave up, send it again, and see no prompts of tenants."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.producer.gateway.jobs.job_ids import stored_id
from imagefleet.shared.jobs.dead_letters import DeadLetter, DeadLetters
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import until
from tests.support.tenants import TwoTenants, two_tenants

READS = ("", "/failures", "/dead-letters", "/callbacks", "/alerts")
SECRET = "the secret of gold"
INSIDE = "http://127.0.0.1:9/secret-of-gold.png?key=secret"


@pytest.fixture(scope="module")
def tenants(
    redis_server: LocalRedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoTenants]:
    with two_tenants(redis_server, tmp_path_factory.mktemp("fleet")) as tenants:
        yield tenants


@pytest.fixture(scope="module")
def operator(tenants: TwoTenants) -> Iterator[httpx.Client]:
    """A client with a key of iron that may do everything."""
    key = ApiKeys(tenants.producer.connection).create("operator", "iron", list(Scope))
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=tenants.gateway.url, headers=headers, timeout=300) as client:
        yield client


def _data(operator: httpx.Client, path: str, **asked: Any) -> list[dict[str, Any]]:
    answer = operator.get(f"/v1/fleet{path}", params=asked)
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def _fail(tenants: TwoTenants, name: str) -> None:
    """Let a job of gold fail, which starts from an address that workers may not call."""
    inputs = {"prompt": SECRET, "image": INSIDE, "strength": 0.5}
    body = {"input": inputs, "webhook": "http://127.0.0.1:9/secret-hook"}
    answer = tenants.gold.put(
        f"/v1/predictions/{name}", json=body, headers={"prefer": "wait"}
    ).json()
    assert answer["status"] == "failed", answer


def test_the_fleet_is_shown_with_hosts_queues_and_rates(
    tenants: TwoTenants, operator: httpx.Client
) -> None:
    tenants.image_of_gold()
    tenants.gold.put("/v1/predictions/waits", json={"input": {"prompt": SECRET, "priority": 9}})
    fleet = until(
        lambda: (found := operator.get("/v1/fleet").json())["rates"]["succeeded_per_hour"] and found
    )
    [host] = fleet["hosts"]
    assert (host["state"], host["model"], host["slots"]) == ("ready", "fake", 8)
    assert host["name"].startswith(f"{host['host']}:")
    assert 0 < host["lease_s"] < 60
    assert fleet["redis"]["used_bytes"] > 0
    assert fleet["models"] == ["fake"]
    assert _data(operator, "/alerts") == []


def test_failures_and_dead_letters_are_listed_and_redriven(
    tenants: TwoTenants, operator: httpx.Client
) -> None:
    for name in ("fails-1", "fails-2"):
        _fail(tenants, name)
    second, first = _data(operator, "/failures", limit=2)
    assert (first["job_id"], second["job_id"]) == tuple(
        stored_id("gold", name) for name in ("fails-1", "fails-2")
    )
    assert (first["tenant"], first["own_id"], first["code"]) == ("gold", None, "invalid_input")
    assert first["host"] == operator.get("/v1/fleet").json()["hosts"][0]["host"]
    letters = {each["job_id"]: each for each in _data(operator, "/dead-letters")}
    letter = letters[first["job_id"]]
    assert (letter["code"], letter["tenant"], letter["can_be_redriven"]) == (
        "invalid_input",
        "gold",
        True,
    )
    assert {"ImagefleetDeadLetters"} <= {each["name"] for each in _data(operator, "/alerts")}
    done = operator.post(f"/v1/fleet/dead-letters/{letter['id']}/redrive").json()
    assert done == {"id": letter["id"], "redriven": True, "note": "queued again"}
    job = tenants.producer.get(first["job_id"])
    until(lambda: job.status().state is State.FAILED)
    assert operator.post("/v1/fleet/dead-letters/nothing/redrive").status_code == 404
    until(lambda: first["job_id"] in {each["job_id"] for each in _data(operator, "/dead-letters")})
    answer = operator.post("/v1/fleet/dead-letters/redrive").json()
    assert (answer["redriven"], answer["not_redriven"], answer["left"]) == (len(letters), [], 0)


def test_callbacks_that_were_given_up_are_listed_and_replayed(
    tenants: TwoTenants, operator: httpx.Client
) -> None:
    _fail(tenants, "reports")
    job_id = stored_id("gold", "reports")

    def given_up() -> dict[str, Any] | None:
        found = [each for each in _data(operator, "/callbacks") if each["job_id"] == job_id]
        return found[0] if found else None

    callback = until(given_up)
    assert (callback["receiver"], callback["verdict"]) == ("127.0.0.1:9", "refused")

    def tries() -> int:
        attempts = tenants.producer.outbox.attempts_of(job_id)
        return sum(each.id == callback["id"] for each in attempts)

    assert tries() == 1
    path = f"/v1/fleet/callbacks/{callback['id']}/replay"
    assert operator.post(path).status_code == 204
    until(lambda: tries() == 2)
    assert operator.post("/v1/fleet/callbacks/nothing/replay").status_code == 404


def test_no_prompt_image_or_address_of_another_tenant_is_shown(
    tenants: TwoTenants, operator: httpx.Client
) -> None:
    _fail(tenants, "secret-1")
    connection = tenants.producer.connection
    letters = DeadLetters(connection.redis, connection.namespace)
    for code, reason in [
        ("invalid_request", f"prompt={SECRET!r}: must be shorter"),
        ("worker_error", f"ValueError: cannot encode {SECRET}"),
        ("invalid_input", f"image={INSIDE!r}: cannot be read"),
    ]:
        request = {"version": 1, "request": {"prompt": SECRET, "tenant": "gold"}}
        letters.add("list", _message(request), code=code, reason=reason, deliveries=1)
        letters.add("list", f"no message, {reason}", code=code, reason=reason[:20], deliveries=1)
    assert len([each for each in letters.read() if isinstance(each, DeadLetter)]) >= 6
    texts = "".join(operator.get(f"/v1/fleet{path}").text for path in READS)
    assert texts.count("gold") >= 5
    for hidden in (SECRET, "secret of", "secret-of", "secret-hook", "key=", "image/png"):
        assert hidden not in texts
    for each in ("secret-1", stored_id("gold", "secret-1")):
        assert operator.get(f"/v1/jobs/{each}").status_code == 404
    for letter in letters.read():
        letters.drop(letter)


def _message(arguments: dict[str, Any]) -> str:
    """Return a message of Celery's protocol 2 with these keyword arguments."""
    body = json.dumps([[], arguments, {}])
    headers = {"id": "foreign-1", "task": "imagefleet.render"}
    properties = {"body_encoding": None}
    return json.dumps({"body": body, "headers": headers, "properties": properties})


def test_only_keys_with_operate_may_see_or_change_the_fleet(tenants: TwoTenants) -> None:
    posts = ("/dead-letters/redrive", "/dead-letters/a/redrive", "/callbacks/a/replay")
    asked = [("GET", path) for path in READS] + [("POST", path) for path in posts]
    for method, path in asked:
        refused = tenants.gold.request(method, f"/v1/fleet{path}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")


def test_a_gateway_of_this_host_without_keys_is_an_operators(tenants: TwoTenants) -> None:
    _fail(tenants, "local")
    with httpx.Client(base_url=tenants.local.url, timeout=300) as local:
        assert local.get("/v1/fleet").json()["hosts"]
        assert _data(local, "/failures")[0]["own_id"] is not None
