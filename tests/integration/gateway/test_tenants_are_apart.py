"""Another tenant's jobs and images do not exist: they cannot be read, guessed or started from."""

import base64
import itertools
import re
import time
from collections.abc import Iterator
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from PIL import Image

from imagefleet.producer.gateway.jobs.job_ids import stored_id
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import until
from tests.support.receiver import Receiver
from tests.support.tenants import TwoTenants, two_tenants


@pytest.fixture(scope="module")
def tenants(
    redis_server: LocalRedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoTenants]:
    with two_tenants(redis_server, tmp_path_factory.mktemp("tenants")) as tenants:
        yield tenants


def _path(url: str) -> str:
    return urlsplit(url).path


def test_the_image_of_another_tenant_is_as_unknown_as_none(tenants: TwoTenants) -> None:
    made = tenants.image_of_gold()
    shown, stored = made["id"], stored_id("gold", made["id"])
    assert tenants.gold.get(f"/v1/images/{shown}/0.png").status_code == 200
    answers = [
        tenants.iron.get(f"/v1/images/{name}/0.png")
        for name in (shown, stored, stored_id("iron", stored), "never-was")
    ]
    assert [each.status_code for each in answers] == [404] * 4
    assert (
        len(
            {
                each.text.replace(stored, "X")
                .replace(shown, "X")
                .replace("never-was", "X")
                .replace(stored_id("iron", ""), "")
                for each in answers
            }
        )
        == 1
    )
    assert len({tuple(sorted(each.headers.keys())) for each in answers}) == 1


def test_no_route_knows_an_id_of_another_tenant(tenants: TwoTenants) -> None:
    """Every route of the document that takes an id is asked for gold's by iron."""
    made = tenants.gold.put("/v1/predictions/own-name", json={"input": {"prompt": "of gold"}})
    assert made.status_code == 201, made.text
    file = tenants.gold.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}")}
    )
    ids = {
        "prediction_id": ["own-name", stored_id("gold", "own-name")],
        "job_id": ["own-name", stored_id("gold", "own-name")],
        "file_id": [file.json()["id"]],
        "file": ["0.png"],
    }
    asked = 0
    for path, operations in tenants.gold.get("/openapi.json").json()["paths"].items():
        names = re.findall(r"{(\w+)}", path)
        if not names or not set(names) <= ids.keys():
            continue
        for method in operations.keys() - {"put"}:  # which would make iron's own
            for values in itertools.product(*(ids[name] for name in names)):
                url = path.format(**dict(zip(names, values, strict=True)))
                answer = tenants.iron.request(method, url)
                assert answer.status_code == 404, (method, url, answer.text)
                assert "of gold" not in answer.text
                asked += 1
    assert asked >= 10
    own = tenants.iron.put("/v1/predictions/own-name", json={"input": {"prompt": "of iron"}})
    assert own.status_code == 201, own.text
    assert "of gold" in tenants.gold.get("/v1/predictions/own-name").text
    for path in ("/v1/predictions", "/v1/files"):
        listed = tenants.iron.get(path)
        assert listed.status_code == 200
        assert "of gold" not in listed.text
        assert file.json()["id"] not in listed.text


def test_a_webhook_inside_the_network_is_not_sent(tenants: TwoTenants) -> None:
    with Receiver() as receiver:
        created = tenants.iron.put(
            "/v1/predictions/inside",
            json={"input": {"prompt": "a"}, "webhook": receiver.url},
            headers={"prefer": "wait"},
        )
        assert created.status_code == 201, created.text
        until(lambda: tenants.producer.connection.read_fleet().callbacks_given_up)
        assert not receiver.deliveries


def test_an_error_names_the_job_as_its_tenant_knows_it(tenants: TwoTenants) -> None:
    body = {"prompt": "a", "ttl": 0.00001}
    for path in ("/v1/images/generations", "/sdapi/v1/txt2img"):
        failed = tenants.gold.post(path, json=body)
        assert failed.status_code == 400
        assert "failed: no worker started the job" in failed.text
        assert stored_id("gold", "") not in failed.text


def test_the_same_idempotency_key_of_two_tenants_is_two_jobs(tenants: TwoTenants) -> None:
    body = {"prompt": "a", "response_format": "url"}
    headers = {"idempotency-key": "the-same"}
    made = [
        each.post("/v1/images/generations", json=body, headers=headers)
        for each in (tenants.gold, tenants.iron)
    ]
    assert [each.status_code for each in made] == [200, 200]
    assert made[0].json()["id"] != made[1].json()["id"]


def test_a_request_for_another_tenant_is_refused(tenants: TwoTenants) -> None:
    body = {"prompt": "a", "tenant": "gold"}
    refused = tenants.iron.post("/v1/images/generations", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tenant")


@pytest.mark.parametrize("field", ["image", "mask_image", "latents"])
@pytest.mark.parametrize(
    "address",
    [
        "{key}",
        "/{key}",
        "./{key}",
        "../{key}",
        "jobs/{job}/../{job}/0.png",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "/etc/passwd",
        "s3://bucket/{key}",
        "gs://bucket/{key}",
        "ftp://127.0.0.1/{key}",
        "gopher://127.0.0.1:6379/_INFO",
        "data:image/png,abc",
        "data:image/png;base64,!!!!",
    ],
)
def test_a_job_starts_from_no_key_file_or_store(
    tenants: TwoTenants, field: str, address: str
) -> None:
    made = _made(tenants)
    job = stored_id("gold", made["id"])
    given = address.format(key=f"jobs/{job}/0.png", job=job)
    refused = tenants.iron.post("/v1/images/generations", json={"prompt": "a", field: given})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == field


_MADE: dict[str, dict[str, Any]] = {}


def _made(tenants: TwoTenants) -> dict[str, Any]:
    """Return one image of gold, which several tests share."""
    if tenants.gateway.url not in _MADE:
        _MADE[tenants.gateway.url] = tenants.image_of_gold()
    return _MADE[tenants.gateway.url]


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/a.png",
        "http://127.0.0.1:{port}/v1/images/{shown}/0.png",
        "http://localhost:{port}/healthz",
        "http://0x7f000001/a.png",
        "http://10.0.0.1/a.png",
    ],
)
def test_no_worker_fetches_an_address_inside_the_network(tenants: TwoTenants, address: str) -> None:
    made = _made(tenants)
    given = address.format(port=tenants.port, shown=made["id"])
    refused = tenants.iron.post("/v1/images/generations", json={"prompt": "a", "image": given})
    assert refused.status_code in (400, 500), refused.text
    error = refused.json()["error"]
    assert error["code"] in ("invalid_input", "invalid_request"), error


def test_a_signed_address_opens_its_image_only_and_only_for_its_time(tenants: TwoTenants) -> None:
    made = tenants.image_of_gold(n=2)
    first, second = (each["url"] for each in made["data"])
    assert httpx.get(first).status_code == 200
    query = {name: values[0] for name, values in parse_qs(urlsplit(first).query).items()}
    later = query | {"expires": str(int(query["expires"]) + 1)}
    for path, changed in [
        (_path(second), query),
        (_path(first), later),
        (_path(first), query | {"signature": "0" * 64}),
        (_path(first), query | {"signature": "é"}),
        (_path(first), query | {"expires": "٩" * 12}),
        (_path(first), query | {"expires": "9" * 5000}),
    ]:
        answer = httpx.get(f"{tenants.gateway.url}{path}?{urlencode(changed)}")
        assert answer.status_code in (403, 404), (path, answer.text)
        assert not answer.headers["content-type"].startswith("image/")
    expired = str(int(time.time()) - 1)
    assert (
        httpx.get(
            f"{tenants.gateway.url}{_path(first)}?{urlencode({'expires': expired})}"
            f"&signature={query['signature']}"
        ).status_code
        == 403
    )


def test_a_signed_address_is_no_key_for_other_routes(tenants: TwoTenants) -> None:
    made = _made(tenants)
    query = urlsplit(made["data"][0]["url"]).query
    for path in ("/v1/models", "/v1/images/generations"):
        assert (
            httpx.request(
                "GET" if path.endswith("models") else "POST", f"{tenants.gateway.url}{path}?{query}"
            ).status_code
            == 401
        )


def test_private_images_are_cached_by_nobody_else(tenants: TwoTenants) -> None:
    made = _made(tenants)
    answer = tenants.gold.get(f"/v1/images/{made['id']}/0.png")
    assert answer.headers["cache-control"].startswith("private")
    assert "authorization" in answer.headers["vary"]
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    etag = {"if-none-match": answer.headers["etag"]}
    path = f"/v1/images/{made['id']}/0.png"
    assert tenants.gold.get(path, headers=etag).status_code == 304
    assert tenants.iron.get(path, headers=etag).status_code == 404
    assert tenants.gold.get("/v1/models").headers["cache-control"] == "no-store"


def test_an_image_is_asked_for_by_head_and_by_any_of_several_etags(tenants: TwoTenants) -> None:
    path = f"/v1/images/{_made(tenants)['id']}/0.png"
    answer = tenants.gold.get(path)
    head = tenants.gold.head(path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("etag", "content-length", "content-type"):
        assert head.headers[name] == answer.headers[name]
    assert tenants.iron.head(path).status_code == 404
    etag = answer.headers["etag"]
    for text, status in [
        ("*", 304),
        (f'"other", {etag}', 304),
        (f"W/{etag}", 304),
        ('"other", "another"', 200),
    ]:
        assert tenants.gold.get(path, headers={"if-none-match": text}).status_code == status, text


def test_an_address_that_has_expired_opens_with_a_key_that_may_read_the_image(
    tenants: TwoTenants,
) -> None:
    address = urlsplit(tenants.image_of_gold()["data"][0]["url"])
    query = {name: values[0] for name, values in parse_qs(address.query).items()}
    expired = f"{address.path}?{urlencode(query | {'expires': str(int(time.time()) - 1)})}"
    without_time = f"{address.path}?signature={query['signature']}"
    for path in (expired, without_time):
        assert tenants.gold.get(path).headers["content-type"] == "image/png"
        refused = [tenants.iron.get(path), httpx.get(f"{tenants.gateway.url}{path}")]
        refused += [tenants.iron.get(path.replace("/0.png", "/7.png"))]
        assert {each.status_code for each in refused} == {403}
        assert {each.json()["error"]["code"] for each in refused} == {"wrong_signature"}


def test_a_bomb_in_a_mask_is_not_unpacked(tenants: TwoTenants) -> None:
    bomb = BytesIO()
    Image.new("LA", (8_192, 8_192)).save(bomb, "PNG")
    vector = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    small = BytesIO()
    Image.new("RGB", (64, 64)).save(small, "PNG")
    for mask, limit in [(bomb.getvalue(), "16,777,216 pixels"), (vector, "image file")]:
        files = {"image": ("a.png", small.getvalue()), "mask": ("m.png", mask)}
        refused = tenants.iron.post("/v1/images/edits", data={"prompt": "a"}, files=files)
        assert refused.status_code == 400, refused.text
        assert limit in refused.json()["error"]["message"]
    text = base64.b64encode(b"0" * 20_000_001).decode()
    large = {"prompt": "a", "image": f"data:image/png;base64,{text}"}
    refused = tenants.iron.post("/v1/images/generations", json=large)
    assert "20,000,000 bytes" in refused.json()["error"]["message"]
