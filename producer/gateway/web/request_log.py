"""Give each request an id, log and count who did what, and set the headers that answers have."""

import logging
import re
import time
import uuid
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from imagefleet.producer.connection.tracing import continue_trace
from imagefleet.producer.gateway.jobs.job_ids import stored_id
from imagefleet.producer.gateway.web.metrics import count_request
from imagefleet.shared.redis_client.each_lane import noting_left_out
from imagefleet.shared.text.printable import printable

log = logging.getLogger("imagefleet.http")
audit = logging.getLogger("imagefleet.http.audit")
"""It has the lines of requests that may change something."""

REQUEST_ID: Final = "x-request-id"
JOB_HEADER: Final = "x-imagefleet-job"
"""It names the job that a request waited for."""
LANES_DOWN: Final = "x-imagefleet-lanes-down"
"""It numbers the lanes of a cluster that did not answer, and are left out of the answer."""
_GIVEN_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_READS: Final = ("GET", "HEAD", "OPTIONS")
_OF_JOBS: Final = ("job_id", "prediction_id", "batch_id", "run_id")
"""Parameters in paths that name a job, or an order of many."""
_ALWAYS: Final = {
    "cache-control": "no-store",  # images say otherwise
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class RequestLog:
    """This ASGI application logs the requests to another one.

    The state of a request holds `request_id`; the dependency that finds the caller adds `caller`,
    routes that have made a job add `job`, those that have made a batch or a run `order`, and errors
    add `error`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        state = scope.setdefault("state", {})
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        state["request_id"] = given if _GIVEN_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        status = 0
        left_out: set[int] = set()
        continue_trace(headers.get("traceparent"))

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answer = MutableHeaders(scope=message)
                answer[REQUEST_ID] = state["request_id"]
                if left_out:
                    answer[LANES_DOWN] = ", ".join(map(str, sorted(left_out)))
                for name, value in _ALWAYS.items():
                    answer.setdefault(name, value)
            await send(message)

        try:
            with noting_left_out() as left_out:
                await self._app(scope, receive, send_with_headers)
        finally:
            seconds = time.monotonic() - started
            count_request(scope, status, seconds)
            _log(scope, status, seconds)


def _log(scope: Scope, status: int, seconds: float) -> None:
    state = scope["state"]
    caller = state.get("caller")
    client = scope.get("client")
    into = log if scope["method"] in _READS else audit
    into.info(
        "%s %s %d %.3f s key=%s tenant=%s job=%s request=%s from=%s error=%s",
        scope["method"],
        printable(scope["path"], 200),
        status,
        seconds,
        (caller.key_id or "") if caller else "",
        (caller.tenant or "") if caller else "",
        printable(_job(scope), 200),
        state["request_id"],
        client[0] if client else "",
        state.get("error", ""),
    )


def _job(scope: Scope) -> str:
    """Return the job that a request made, as the commands of operators name it, the batch or run
    that it made, or what its path names of these; '' if nothing."""
    state, named = scope["state"], scope.get("path_params", {})
    if made := state.get("job"):
        return stored_id(state["caller"].tenant, made)
    in_path = (str(named[name]) for name in _OF_JOBS if name in named)
    return str(state.get("order") or next(in_path, ""))
