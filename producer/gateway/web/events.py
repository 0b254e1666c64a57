"""Send server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final

from starlette.responses import StreamingResponse

from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.errors import any_problem
from imagefleet.producer.gateway.web.metrics import OPEN_STREAMS

_HEARTBEAT: Final = ": still here\n\n"
_HEARTBEAT_S: Final = 15.0
"""Seconds of silence after which proxies see that the stream lives."""
_LINE_END: Final = re.compile("\r\n|\r|\n")
_HEADERS: Final = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx passes each event on at once
}


def event(name: str, data: Mapping[str, Any], event_id: str | None = None) -> str:
    """Return one event with JSON as its data."""
    return _event(name, f"data: {json.dumps(data, separators=(',', ':'))}\n", event_id)


def text_event(name: str, text: str, event_id: str | None = None) -> str:
    """Return one event with a text as its data."""
    lines = "".join(f"data: {line}\n" for line in _LINE_END.split(text))
    return _event(name, lines, event_id)


def _event(name: str, lines: str, event_id: str | None) -> str:
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {name}\n{lines}\n"


def event_stream(
    events: AsyncGenerator[str], last_event: Callable[[Problem], str]
) -> StreamingResponse:
    """Return the answer that sends events as they come.

    Args:
        events: they may end with any error, for example because Redis is away.
        last_event: writes the event that says so. Without one, clients see a broken connection.
    """
    whole = _with_heartbeats(_with_last_event(events, last_event))
    return StreamingResponse(whole, media_type="text/event-stream", headers=_HEADERS)


async def _with_last_event(
    events: AsyncGenerator[str], last_event: Callable[[Problem], str]
) -> AsyncGenerator[str]:
    async with aclosing(events):
        try:
            async for text in events:
                yield text
        except Exception as error:
            yield last_event(any_problem(error))


async def _with_heartbeats(events: AsyncGenerator[str]) -> AsyncIterator[str]:
    following = asyncio.ensure_future(anext(events, None))
    OPEN_STREAMS.inc()
    try:
        while True:
            done, _ = await asyncio.wait([following], timeout=_HEARTBEAT_S)
            if not done:
                yield _HEARTBEAT
                continue
            if (text := following.result()) is None:
                return
            yield text
            following = asyncio.ensure_future(anext(events, None))
    finally:
        OPEN_STREAMS.dec()
        following.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await following
        await events.aclose()
