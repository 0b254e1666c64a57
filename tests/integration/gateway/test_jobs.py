"""The jobs of a tenant over HTTP: listed however they came, searched, starred, closed to others."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import LOOPBACK
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.producer.gateway.jobs.wanted_jobs import WantedJobs
from imagefleet.shared.jobs.redis_keys import job_key
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.gateway import GatewayFleet

Sender = Callable[..., httpx.Client]


@pytest.fixture
def sender(fleet: GatewayFleet) -> Iterator[Sender]:
    """Return a function that opens a client with a new key of a tenant."""
    opened: list[httpx.Client] = []

    def open_client(tenant: str, *scopes: Scope, **limits: Any) -> httpx.Client:
        keys = ApiKeys(fleet.producer.connection)
        key = keys.create(tenant, tenant, scopes or (Scope.SUBMIT, Scope.READ), **limits)
        headers = {"authorization": f"Bearer {key}"}
        opened.append(httpx.Client(base_url=fleet.guarded_url, headers=headers, timeout=900))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()


def _put(http: httpx.Client, name: str, **inputs: Any) -> None:
    body = {"input": {"prompt": name, **inputs}}
    answer = http.put(f"/v1/predictions/{name}", json=body, headers={"prefer": "wait"})
    assert answer.status_code == 201, answer.text


def _page(http: httpx.Client, **asked: Any) -> dict[str, Any]:
    answer = http.get("/v1/jobs", params=asked)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


def _names(http: httpx.Client, **asked: Any) -> list[str]:
    return [each["id"] for each in _page(http, **asked)["data"]]


def test_jobs_of_every_api_are_listed_and_shown_with_their_images(sender: Sender) -> None:
    http = sender("every")
    body = {"prompt": "one", "size": "64x64", "seed": 7}
    openai_id = http.post("/v1/images/generations", json=body).json()["id"]
    webui = http.post("/sdapi/v1/txt2img", json={"prompt": "two", "n_iter": 2})
    _put(http, "three", num_inference_steps=4)
    page = _page(http)
    assert [each["id"] for each in page["data"]] == [
        "three",
        webui.headers["x-imagefleet-job"],
        openai_id,
    ]
    assert (page["next"], page["previous"], page["complete"]) == (None, None, True)
    three, two, one = page["data"]
    assert page["searched_until"] == pytest.approx(one["created_at"], abs=5)
    assert one["parameters"] == {
        "prompt": "one",
        "seed": 7,
        "width": 64,
        "height": 64,
    }
    assert (one["state"], one["model"], one["error"], one["host"]) == (
        "succeeded",
        "fake",
        None,
        None,
    )
    assert one["created_at"] <= one["started_at"] <= one["ended_at"]
    assert one["seconds"] == pytest.approx(one["ended_at"] - one["started_at"], abs=0.002)
    assert [each["index"] for each in two["images"]] == [0, 1]
    [image] = three["images"]
    assert httpx.get(image["url"]).headers["content-type"] == "image/png"
    assert three["progress"] == {"step": 4, "steps": 4}


def test_a_job_is_shown_with_the_parameters_that_its_model_chose(sender: Sender) -> None:
    http = sender("chosen")
    _put(http, "shown", seed=5)
    shown = http.get("/v1/jobs/shown").json()
    given = _page(http)["data"][0]["parameters"]
    assert given == {"prompt": "shown", "seed": 5, "width": 64, "height": 64}
    chosen = {name: shown["parameters"][name] for name in shown["parameters"].keys() - given.keys()}
    offer = http.get("/v1/models/fake").json()
    assert chosen == {
        "num_inference_steps": offer["num_inference_steps"],
        "guidance_scale": offer["guidance_scale"],
        "scheduler": offer["scheduler"],
    }
    assert shown["preview"] is None
    again = http.put("/v1/predictions/again", json={"input": shown["parameters"]})
    assert again.status_code == 201, again.text


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ["cat", "lake", "dog"]),
        ({"prompt": "RED"}, ["lake", "dog"]),
        ({"prompt": 'ÄPFEL "of'}, ["cat"]),
        ({"seed": 2}, ["lake"]),
        ({"prompt": "red", "seed": 1}, ["dog"]),
        ({"state": "succeeded"}, ["cat", "lake", "dog"]),
        ({"state": "failed"}, []),
        ({"model": "fake"}, ["cat", "lake", "dog"]),
        ({"model": "other"}, []),
        ({"lora": "style"}, []),
        ({"starred": "true"}, ["lake"]),
        ({"starred": "false", "limit": 1}, ["cat"]),
        ({"from": 4e9}, []),
        ({"to": 1e9}, []),
        ({"from": 1e9, "to": 4e9, "limit": 2}, ["cat", "lake"]),
    ],
)
def test_a_search_finds_what_all_its_filters_ask_for(
    sender: Sender, asked: dict[str, Any], found: list[str]
) -> None:
    http = sender("search")
    if not _names(http):
        _put(http, "dog", prompt="a red dog", seed=1)
        _put(http, "lake", prompt="a lake, Red", seed=2)
        _put(http, "cat", prompt='äpfel "of" a cat\n', seed=3)
        assert http.put("/v1/jobs/lake/star").status_code == 204
    assert _names(http, **asked) == found


def test_pages_go_in_both_directions_and_stay_the_same_while_jobs_come(sender: Sender) -> None:
    http = sender("pages")
    for number in range(7):
        _put(http, f"p{number}", prompt="even" if number % 2 == 0 else "odd")
    first = _page(http, limit=3)
    _put(http, "p7", prompt="odd")
    second = _page(http, limit=3, cursor=first["next"])
    third = _page(http, limit=3, cursor=second["next"])
    pages = [[each["id"] for each in page["data"]] for page in (first, second, third)]
    assert pages == [["p6", "p5", "p4"], ["p3", "p2", "p1"], ["p0"]]
    assert (first["previous"], third["next"], third["complete"]) == (None, None, True)
    assert _names(http, limit=3, cursor=third["previous"]) == pages[1]
    newest = _page(
        http, limit=3, cursor=_page(http, limit=3, cursor=second["previous"])["previous"]
    )
    assert ([each["id"] for each in newest["data"]], newest["previous"]) == (["p7"], None)
    assert _names(http, limit=3, cursor=newest["next"]) == pages[0]
    odd = _page(http, limit=2, prompt="odd")
    rest = _page(http, limit=2, prompt="odd", cursor=odd["next"])
    assert [each["id"] for each in odd["data"] + rest["data"]] == ["p7", "p5", "p3", "p1"]
    assert _names(http, limit=2, prompt="odd", cursor=rest["previous"]) == ["p7", "p5"]


def test_a_star_is_kept_as_long_as_the_record_of_its_job(
    fleet: GatewayFleet, sender: Sender
) -> None:
    http = sender("stars")
    for name in ("first", "second", "third"):
        _put(http, name)
        assert http.put(f"/v1/jobs/{name}/star").status_code == 204
    entries = [{"prompt": "of a program", "id": f"python-{number}"} for number in (1, 2)]
    of_python = fleet.producer.submit_many(entries, tenant="stars")  # both have one time
    for job in of_python:
        job.result(timeout=900)
        assert http.put(f"/v1/jobs/{job.id}/star").status_code == 204
    assert _names(http, starred="true", limit=1) == ["python-2"]
    assert _names(http, starred="true")[1:] == ["python-1", "third", "second", "first"]
    assert http.delete("/v1/jobs/second/star").status_code == 204
    assert http.delete("/v1/jobs/second/star").status_code == 204
    assert [each["starred"] for each in _page(http)["data"]] == [True, False, True]
    newest = _page(http, starred="true", limit=1)
    assert _names(http, starred="true", cursor=newest["next"], limit=1) == ["python-1"]
    for job in of_python:
        job.delete()
    assert _names(http, starred="true") == ["third", "first"]
    assert http.put("/v1/jobs/python-1/star").status_code == 404


def test_a_refused_job_is_not_listed(sender: Sender) -> None:
    http = sender("refused", images_per_day=1)
    assert http.post("/v1/images/generations", json={"prompt": "a", "seed": -1}).status_code == 400
    assert http.post("/v1/images/generations", json={"prompt": "a", "n": 2}).status_code == 429
    assert http.post("/sdapi/v1/txt2img", json={"prompt": "a", "steps": 0}).status_code == 400
    assert _names(http) == []


def test_jobs_of_another_tenant_are_unknown_also_to_its_operators(sender: Sender) -> None:
    gold, iron = sender("gold"), sender("iron", *Scope)
    _put(gold, "secret", prompt="the secret of gold")
    for method, path in [
        ("GET", "/v1/jobs/secret"),
        ("PUT", "/v1/jobs/secret/star"),
        ("DELETE", "/v1/jobs/secret/star"),
    ]:
        answer = iron.request(method, path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
    assert _names(iron) == _names(iron, prompt="secret") == _names(iron, starred="true") == []
    own = {"input": {"prompt": "of iron"}}
    iron.put("/v1/predictions/mine", json=own, headers={"prefer": "wait"}).raise_for_status()
    assert _page(iron)["data"][0]["host"] is not None
    assert gold.get("/v1/jobs/secret").json()["host"] is None


def test_a_scope_is_needed_for_each_right(sender: Sender) -> None:
    reader, submitter = sender("scopes", Scope.READ), sender("scopes", Scope.SUBMIT)
    _put_with_read = sender("scopes")
    _put(_put_with_read, "a")
    assert reader.put("/v1/jobs/a/star").status_code == 403
    assert submitter.get("/v1/jobs").status_code == submitter.get("/v1/jobs/a").status_code == 403
    assert submitter.put("/v1/jobs/a/star").status_code == 204


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"limit": 101}, "limit"),
        ({"state": "done"}, "state"),
        ({"cursor": "x"}, "cursor"),
        ({"promt": "a"}, "promt"),
        ({"from": "nan"}, "from"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_wrong_filter_is_named(sender: Sender, asked: dict[str, Any], field: str) -> None:
    answer = sender("wrong").get("/v1/jobs", params=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_a_key_learns_whose_it_is_and_how_much_of_its_quota_is_used(
    fleet: GatewayFleet, sender: Sender
) -> None:
    http = sender("me", images_per_day=10, per_minute=100, max_priority=5)
    http.post("/v1/images/generations", json={"prompt": "a", "n": 3}).raise_for_status()
    me = http.get("/v1/me").json()
    assert me["limits"] == {
        "priority": 5,
        "per_minute": 100,
        "images_per_day": 10,
        "images_today": 3,
    }
    assert (me["tenant"], me["name"], me["scopes"]) == ("me", "me", ["submit", "read"])
    assert f"ifk_{me['key']}_" in http.headers["authorization"]
    assert me["retention_s"] == fleet.producer.settings.retention_s
    assert httpx.get(f"{fleet.guarded_url}/v1/me").status_code == 401
    local = httpx.get(f"{fleet.open_url}/v1/me").json()
    assert (local["tenant"], local["key"], local["scopes"]) == (None, None, list(Scope))
    assert local["limits"]["images_today"] is None


def test_jobs_without_a_tenant_are_listed_by_a_gateway_without_keys(fleet: GatewayFleet) -> None:
    with httpx.Client(base_url=fleet.open_url, timeout=900) as http:
        _put(http, "local")
        assert "local" in _names(http)
        assert http.put("/v1/jobs/local/star").status_code == 204
        assert _names(http, starred="true") == ["local"]


def test_a_search_whose_time_is_over_goes_on_where_it_ended(
    redis_server: LocalRedisServer, namespace: str
) -> None:
    settings = GatewaySettings.load(redis_url=redis_server.url, namespace=namespace)
    gateway = Gateway(settings, require_keys=False)
    entries = [{"prompt": "needle" if n in (3, 550) else "hay", "id": f"j{n}"} for n in range(600)]
    gateway.client.submit_many(entries)
    for entry in entries:
        gateway.index.add(None, entry["id"])
    wanted, cursor, found, pages = WantedJobs(prompt="Needle"), None, [], 0
    while True:
        page = gateway.search.page(LOOPBACK, cursor, 10, wanted, budget_s=0)
        found += [each.id for each in page.statuses]
        pages += 1
        assert page.searched_until is not None
        if page.complete:
            break
        cursor = page.next
    assert (found, pages, page.next) == (["j550", "j3"], 2, None)
    gateway.close()


def test_keys_of_another_type_and_lost_records_are_left_out(
    redis_server: LocalRedisServer, namespace: str
) -> None:
    settings = GatewaySettings.load(redis_url=redis_server.url, namespace=namespace)
    gateway = Gateway(settings, require_keys=False)
    redis = gateway.client.connection.redis
    for name in ("good", "odd", "broken", "lost"):
        gateway.client.submit("a", id=name)
        gateway.index.add(None, name)
    redis.delete(job_key(namespace, "odd"), job_key(namespace, "lost"))
    redis.set(job_key(namespace, "odd"), "x")
    redis.hset(job_key(namespace, "broken"), "request", "{")
    for wanted in (WantedJobs(), WantedJobs(prompt="a"), WantedJobs(starred=False)):
        page = gateway.search.page(LOOPBACK, None, 10, wanted)
        assert [each.id for each in page.statuses] == ["good"]
        assert page.complete
    gateway.close()
