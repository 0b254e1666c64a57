"""Stop working for a client that has gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed the connection, so nobody reads the answer."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what the coroutine returns. Its jobs go on if the client goes.

    Call it after the body was read.

    Raises:
        ClientGone: the coroutine was cancelled.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
