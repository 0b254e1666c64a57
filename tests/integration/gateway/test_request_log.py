"""The log names who sent each request, also if it was refused, the job and why."""

from collections.abc import Callable

import httpx
import pytest

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope, id_in
from imagefleet.producer.gateway.access.keys import ApiKeys
from tests.support.gateway import start_gateway
from tests.support.processes import StartWorker, Worker, until

_PATH = "/v1/images/generations"


class _Gateway:
    """A gateway with keys, and the fields of the latest line of its log."""

    def __init__(self, url: str, output: Callable[[], str]) -> None:
        self.url, self._output = url, output

    def post(self, key: str, **body: object) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        fields = {"prompt": "a", "response_format": "url", **body}
        return httpx.post(self.url + _PATH, json=fields, headers=headers, timeout=300)

    def logged(self, answer: httpx.Response) -> dict[str, str]:
        mark = f"request={answer.headers['x-request-id']}"
        line = until(lambda: next((x for x in self._output().splitlines() if mark in x), None))
        return dict(each.split("=", 1) for each in line.split() if "=" in each)


@pytest.fixture
def gateway(start: StartWorker, worker: Worker) -> _Gateway:
    started = start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="true")
    return _Gateway(started.url, started.process.output)


def test_a_line_names_the_job_as_the_commands_of_operators_do(
    gateway: _Gateway, producer: Client
) -> None:
    key = ApiKeys(producer.connection).create("a", "gold", [Scope.SUBMIT])
    answer = gateway.post(key)
    logged = gateway.logged(answer)
    assert (logged["key"], logged["tenant"], logged["error"]) == (id_in(key), "gold", "")
    assert producer.get(logged["job"]).status().request.tenant == "gold"
    assert logged["job"].endswith(answer.json()["id"])
    refused = gateway.post(key, size="8x8")
    assert refused.status_code == 400
    logged = gateway.logged(refused)
    assert (logged["job"], logged["error"]) == ("", "invalid_request")


def test_a_line_names_the_key_that_was_refused(gateway: _Gateway, producer: Client) -> None:
    keys = ApiKeys(producer.connection)
    reader, old = (
        keys.create(name, "gold", [scope])
        for name, scope in (("reader", Scope.READ), ("old", Scope.SUBMIT))
    )
    logged = gateway.logged(gateway.post(reader))
    assert (logged["key"], logged["error"]) == (id_in(reader), "missing_scope")
    keys.revoke(old)
    answer = gateway.post(old)
    assert answer.status_code == 401
    assert answer.json()["error"]["message"] == f"the key {id_in(old)} is revoked"
    logged = gateway.logged(answer)
    assert (logged["key"], logged["tenant"]) == (id_in(old), "gold")
    forged = gateway.post(f"ifk_{id_in(reader)}_{'x' * 43}")
    assert "is not valid" in forged.json()["error"]["message"]
    assert gateway.logged(forged)["key"] == ""
