"""The OpenAPI document is valid, and says every answer that a gateway gives."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openapi_spec_validator
import pytest

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.generated_requests import send_generated
from tests.support.processes import StartWorker, Worker


@pytest.fixture
def guarded(start: StartWorker, worker: Worker) -> GatewayProcess:
    """A gateway that asks for keys, answers each wrong one with 401, and waits two seconds for a
    job."""
    return start_gateway(
        start,
        IMAGEFLEET_HTTP_REQUIRE_KEYS="true",
        IMAGEFLEET_HTTP_WRONG_KEYS_PER_MINUTE="1000000",
        IMAGEFLEET_HTTP_WAIT_S="2",
    )


@pytest.fixture
def key(producer: Client) -> str:
    return ApiKeys(producer.connection).create("fuzz", "gold", list(Scope))


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"{method} {path}", operation


def test_the_document_is_valid_and_describes_errors_keys_and_ids(guarded: GatewayProcess) -> None:
    document = httpx.get(f"{guarded.url}/openapi.json").json()
    openapi_spec_validator.validate(document)
    references = set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(document)))
    assert references == {
        f"#/components/schemas/{name}" for name in document["components"]["schemas"]
    }
    signed = {
        "get /v1/images/{job_id}/{file}",
        "get /v1/runs/{run_id}/files/{key}",
        "get /v1/runs/{run_id}/images/{shard}/{key}",
    }
    open_routes = {"get /healthz", "get /readyz", "options /v1/images/generations", *signed}
    for name, operation in _operations(document):
        answers = operation["responses"]
        assert all("x-request-id" in each["headers"] for each in answers.values()), name
        errors = [each for status, each in answers.items() if status >= "400"]
        assert all("$ref" in str(each["content"]) for each in errors), name
        assert "422" not in answers, name
        assert name in open_routes or (operation["security"] and "401" in answers), name
    body = document["paths"]["/v1/images/generations"]["post"]["requestBody"]["content"]
    properties = body["application/json"]["schema"]["properties"]
    assert PARAMETERS.keys() <= properties.keys()
    assert all(properties[name].keys() & {"type", "anyOf", "enum"} for name in PARAMETERS)
    assert properties["seed"]["maximum"] == 2**32 - 1


def test_generated_requests_are_answered_as_the_document_says(
    guarded: GatewayProcess, key: str, tmp_path: Path
) -> None:
    done = send_generated(guarded.url, key, tmp_path, phases="fuzzing", per_route=3, seed=1)
    assert done.is_right, done.output
    assert done.requests >= 30
    assert "unexpected" not in guarded.process.output()


def test_3000_generated_requests_are_answered_as_the_document_says(
    guarded: GatewayProcess, key: str, tmp_path: Path
) -> None:
    phases = "coverage,fuzzing,stateful"
    done = send_generated(guarded.url, key, tmp_path, phases=phases, per_route=60, seed=1)
    print(f"{done.requests} requests")
    assert done.is_right, done.output
    assert done.requests >= 3_000
    assert "unexpected" not in guarded.process.output()
