"""A stream of the OpenAI Images API ends with an event, whatever happens."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import cast

from imagefleet.producer.gateway.jobs.images import JobImages
from imagefleet.producer.gateway.openai.images_response import ImagesAnswer
from imagefleet.producer.gateway.web.held_bytes import ByteBudget, HeldBytes
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.status import JobStatus


class _NoWatch(AbstractAsyncContextManager[AsyncIterator[JobStatus]]):
    async def __aenter__(self) -> AsyncIterator[JobStatus]:
        raise BrokerUnavailable("Redis does not answer")

    async def __aexit__(self, *_: object) -> None:
        pass


def test_a_watch_that_cannot_begin_is_an_error_event() -> None:
    answer = ImagesAnswer(
        images=cast(JobImages, None),
        name="a",
        base_url="http://localhost",
        as_urls=False,
        kind="image_generation",
        partial_images=0,
        held=HeldBytes(ByteBudget(0)),
    )

    async def read() -> list[str]:
        return [text async for text in answer.events(_NoWatch())]

    [text] = asyncio.run(read())
    name, data = text.strip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == BrokerUnavailable.code
