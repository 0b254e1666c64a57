"""Answer every error in the form of the dialect that was called."""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from imagefleet.producer.gateway.problems import Problem, problem_of
from imagefleet.producer.gateway.web.connected import ClientGone
from imagefleet.producer.gateway.web.dialect import Dialect, dialect_of
from imagefleet.producer.gateway.web.metrics import count_refusal
from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.text.printable import printable

log = logging.getLogger(__name__)

Answer = Callable[[Request, Exception], Awaitable[Response]]
_CODES: Final = {404: "not_found", 405: "method_not_allowed"}


def handle_errors(app: FastAPI, dialects: Sequence[Dialect]) -> None:
    """Answer the errors at all paths, each in its dialect; the last one has what is left."""

    async def on_problem(request: Request, error: Exception) -> Response:
        problem = _as_problem(error, request)
        count_refusal(problem)
        request.state.error = problem.code
        dialect = dialect_of(dialects, request.url.path)
        given = error.headers if isinstance(error, HTTPException) else None  # as `Allow`
        return JSONResponse(
            dialect.error_body(problem),
            problem.status,
            headers={**(given or {}), **headers_of(problem)},
            media_type=dialect.error_media_type,
        )

    for kind in (Problem, ImagefleetError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, on_problem)
    app.add_exception_handler(ClientGone, _answer_nobody)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_middleware(_AnswerUnexpected, answer=on_problem)


class _AnswerUnexpected:
    """This ASGI application answers the errors of another one that have no handler.

    It stands inside those that log requests and set headers. Starlette's own stands outside.
    """

    def __init__(self, app: ASGIApp, *, answer: Answer) -> None:
        self._app = app
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def note_begin(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, note_begin)
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise  # so the server closes the connection, and the answer has no end
            response = await self._answer(Request(scope), error)
            await response(scope, receive, send)


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


def headers_of(problem: Problem) -> dict[str, str]:
    """Return the headers that tell clients whether to repeat the request.

    `x-should-retry` is that of the clients of OpenAI, which else repeat after each 409 and 5xx.
    """
    headers = {"x-should-retry": "false" if problem.retry_after_s is None else "true"}
    if problem.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(problem.retry_after_s))
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def any_problem(error: Exception) -> Problem:
    """Return the problem for an error; that of one which nobody expected is logged."""
    match error:
        case Problem():
            return error
        case ImagefleetError():
            return problem_of(error)
    log.error("a request failed in an unexpected way", exc_info=error)
    return Problem(500, "internal_error", "the gateway failed; its log says why")


def _as_problem(error: Exception, request: Request) -> Problem:
    match error:
        case HTTPException():
            path = printable(request.url.path, 200)
            code = _CODES.get(error.status_code, "http_error")
            return Problem(error.status_code, code, f"{request.method} {path}: {error.detail}")
        case RequestValidationError():
            first = error.errors()[0]
            field = str(first["loc"][-1])
            return Problem(400, "invalid_value", f"{field}: {first['msg']}", field=field)
    return any_problem(error)
