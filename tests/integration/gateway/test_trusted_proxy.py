"""A reverse proxy that has checked the user names the tenant in a header, and nobody else may."""

from collections.abc import Callable

import httpx
import pytest

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.shared.errors import ConfigurationError
from tests.support.gateway import start_gateway
from tests.support.processes import StartWorker, Worker

_HEADER = "X-Forwarded-User"
_PATH = "/v1/images/generations"


def _start(start: StartWorker, proxies: str, **settings: str) -> tuple[str, Callable[[], str]]:
    gateway = start_gateway(
        start, IMAGEFLEET_HTTP_USER_HEADER=_HEADER, IMAGEFLEET_HTTP_PROXIES=proxies, **settings
    )
    return gateway.url, gateway.process.output


def test_the_header_of_the_proxy_is_the_tenant(
    start: StartWorker, worker: Worker, producer: Client
) -> None:
    url, output = _start(start, "10.0.0.0/8, 127.0.0.1")
    body = {"prompt": "a", "response_format": "url"}
    made = httpx.post(url + _PATH, json=body, headers={_HEADER: "jane"}, timeout=300)
    assert made.status_code == 200, made.text
    [job] = producer.jobs()
    assert job.request.tenant == "jane"
    path = f"{url}/v1/images/{made.json()['id']}/0.png"
    assert httpx.get(path, headers={_HEADER: "jane"}).status_code == 200
    assert httpx.get(path, headers={_HEADER: "john"}).status_code == 404
    audit = [line for line in output().splitlines() if "imagefleet.http.audit" in line]
    assert len(audit) == 1
    for said in (f"POST {_PATH} 200", "tenant=jane", f"job={job.id} ", "from=127.0.0.1"):
        assert said in audit[0]
    for wrong in ("", "a b", "../x", "a@example.org"):
        answer = httpx.get(f"{url}/v1/models", headers={_HEADER: wrong})
        assert answer.status_code == 403, wrong
    twice = httpx.get(f"{url}/v1/models", headers=[(_HEADER, "jane"), (_HEADER, "john")])
    assert twice.status_code == 403
    assert httpx.get(f"{url}/v1/models").status_code == 401
    key = ApiKeys(producer.connection).create("a", "gold", [Scope.READ])
    assert httpx.get(f"{url}/v1/models", headers={"x-api-key": key}).status_code == 200


def test_the_model_that_a_user_of_the_proxy_sets_is_that_of_no_other(
    start: StartWorker, worker: Worker
) -> None:
    url, _ = _start(start, "127.0.0.1", IMAGEFLEET_HTTP_MODELS="best=fake")
    options = f"{url}/sdapi/v1/options"
    jane, john = ({_HEADER: name} for name in ("jane", "john"))
    chosen = {"sd_model_checkpoint": "best"}
    assert httpx.post(options, json=chosen, headers=jane).status_code == 200
    models = [
        httpx.get(options, headers=each).json()["sd_model_checkpoint"] for each in (jane, john)
    ]
    assert models == ["best", "fake"]


def test_the_header_of_anybody_else_is_refused(start: StartWorker, producer: Client) -> None:
    url, _ = _start(start, "10.0.0.7")
    key = ApiKeys(producer.connection).create("a", "gold", [Scope.READ])
    for headers in ({}, {"x-forwarded-for": "10.0.0.7"}, {"x-api-key": key}):
        answer = httpx.get(f"{url}/v1/models", headers={_HEADER: "jane", **headers})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_the_proxy")
    assert httpx.get(f"{url}/v1/models", headers={"x-api-key": key}).status_code == 200


@pytest.mark.parametrize(
    "settings",
    [
        {"http_user_header": _HEADER},
        {"http_proxies": "10.0.0.7"},
        {"http_user_header": "a b", "http_proxies": "10.0.0.7"},
        {"http_user_header": "Authorization", "http_proxies": "10.0.0.7"},
        {"http_user_header": _HEADER, "http_proxies": "10.0.0.7/8"},
        {"http_user_header": _HEADER, "http_proxies": "proxy.example.org"},
        {"http_user_header": _HEADER, "http_proxies": "10.0.0.7", "http_require_keys": False},
    ],
)
def test_settings_that_would_trust_too_much_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"(?i)^(IMAGEFLEET_)?HTTP_[A-Z]+"):
        GatewaySettings.load(**settings)
