"""A stream of events ends with one that says why, whatever happens to it."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.responses import StreamingResponse

from imagefleet.producer.gateway.openai.images_response import last_event
from imagefleet.producer.gateway.predictions.event_place import EventPlace
from imagefleet.producer.gateway.predictions.stream import PredictionEvents, tell_ours
from imagefleet.producer.gateway.problems import stopping
from imagefleet.producer.gateway.web.events import event, event_stream
from imagefleet.shared.errors import BrokerUnavailable


def _sent(response: StreamingResponse) -> list[tuple[str, str]]:
    """Return name and data of each event."""

    async def read() -> str:
        parts = [part async for part in response.body_iterator]
        return "".join(map(str, parts))

    events = [each.splitlines() for each in asyncio.run(read()).split("\n\n") if each]
    return [(lines[-2].partition(": ")[2], lines[-1].partition(": ")[2]) for lines in events]


async def _break_off(error: Exception) -> AsyncGenerator[str]:
    yield event("a", {"b": 1})
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerUnavailable("Redis does not answer"), "broker_unavailable"),
        (stopping(), "stopping"),
        (ZeroDivisionError("nobody expected it"), "internal_error"),
    ],
)
def test_a_stream_of_images_that_breaks_off_says_why(error: Exception, code: str) -> None:
    (first, _), (name, data) = _sent(event_stream(_break_off(error), last_event))
    assert (first, name) == ("a", "error")
    assert json.loads(data)["error"]["code"] == code


def test_a_stream_of_a_prediction_says_behind_which_event_another_gateway_goes_on() -> None:
    async def no_status() -> AsyncGenerator[Any]:
        return
        yield

    place = EventPlace(2, 7, 1)
    events = PredictionEvents(lambda status: {}, tell_ours, place, "stopping")
    response = event_stream(events.follow(no_status()), events.last_event)

    async def read() -> list[Any]:
        return [part async for part in response.body_iterator]

    assert asyncio.run(read()) == [
        "id: 2.7.1\nevent: stopping\ndata: this gateway ends; ask again\n\n"
    ]


def test_what_a_stream_holds_is_given_back_if_its_client_leaves() -> None:
    given_back = []

    async def hold() -> AsyncGenerator[str]:
        try:
            yield event("a", {})
            yield event("b", {})
        finally:
            given_back.append(True)

    async def leave() -> None:
        stream = event_stream(hold(), last_event).body_iterator
        await anext(aiter(stream))
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave())
    assert given_back == [True]
