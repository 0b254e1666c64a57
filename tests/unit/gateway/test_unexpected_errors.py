"""An error that nobody expected is answered, logged and counted like any other answer."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from imagefleet.producer.gateway.openai.errors import ERROR_SCHEMA, error_body
from imagefleet.producer.gateway.web.dialect import Dialect
from imagefleet.producer.gateway.web.errors import handle_errors
from imagefleet.producer.gateway.web.request_log import RequestLog


def _app() -> FastAPI:
    app = FastAPI()
    dialect = Dialect(
        routers=(), paths=re.compile("/"), error_body=error_body, error_schema=ERROR_SCHEMA
    )
    handle_errors(app, [dialect])
    app.add_middleware(RequestLog)

    @app.get("/fails")
    async def fail() -> None:
        raise ZeroDivisionError("at the beginning")

    @app.get("/breaks")
    async def break_off() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "a"
            raise ZeroDivisionError("in the middle")

        return StreamingResponse(parts())

    return app


async def _get(path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        return await client.get(path)


def test_it_is_answered_with_the_headers_of_all_answers_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        answer = asyncio.run(_get("/fails"))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["cache-control"] == "no-store"
    request_id = answer.headers["x-request-id"]
    [line] = [each for each in caplog.messages if request_id in each]
    assert line.startswith("GET /fails 500 ")
    assert [each.levelname for each in caplog.records].count("ERROR") == 1


def test_an_answer_that_has_begun_is_broken_off() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(_get("/breaks"))
