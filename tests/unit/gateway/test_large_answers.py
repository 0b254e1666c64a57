"""Answers with images are JSON that is sent in small parts."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Scope

from imagefleet.producer.gateway.web.image_json import Base64, image_json
from imagefleet.producer.gateway.web.send_in_parts import SendInParts

_SCOPE: Scope = {"type": "http", "method": "GET", "path": "/", "asgi": {"spec_version": "2.4"}}
_LARGE = b"QUJD" * 50_000


def _sent(response: Response) -> list[Message]:
    """Return what a server is given of a response."""
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)

    asyncio.run(SendInParts(response)(_SCOPE, receive, send))
    return messages


def _content(messages: Sequence[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in messages)


@pytest.mark.parametrize("files", [[], [b"QUJD"], [b"", _LARGE, b"QUJD", _LARGE]])
def test_json_with_images_is_what_its_length_says_and_what_was_given(files: list[bytes]) -> None:
    data = [{"b64_json": Base64(file), "seed": number} for number, file in enumerate(files)]
    messages = _sent(image_json({"data": data, "\u732b": 'a "b"'}, {"x-job": "j"}))
    headers = dict(messages[0]["headers"])
    content = _content(messages)
    assert headers[b"content-length"] == str(len(content)).encode()
    assert headers[b"content-type"].startswith(b"application/json")
    assert headers[b"x-job"] == b"j"
    expected = [{"b64_json": file.decode(), "seed": n} for n, file in enumerate(files)]
    assert json.loads(content) == {"data": expected, "\u732b": 'a "b"'}


def test_what_is_no_json_is_no_answer() -> None:
    with pytest.raises(TypeError, match="object does not stand in JSON"):
        image_json({"a": object()}, {})


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 400_000])
def test_every_answer_is_sent_in_parts_of_at_most_64_kb(size: int) -> None:
    content = b"a" * size

    async def parts() -> AsyncIterator[bytes]:
        yield content
        yield b"end"

    for response, expected in (
        (Response(content), content),
        (StreamingResponse(parts()), content + b"end"),
    ):
        messages = _sent(response)
        bodies = [each for each in messages if each["type"] == "http.response.body"]
        assert _content(bodies) == expected
        assert all(len(each["body"]) <= 65_536 for each in bodies)
        assert [each.get("more_body", False) for each in bodies] == [True] * (len(bodies) - 1) + [
            False
        ]
