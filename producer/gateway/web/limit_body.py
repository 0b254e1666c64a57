"""Bound the body of each request: its bytes, the seconds in which it must have come, and the memory
that it takes beside those of other requests."""

import asyncio
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.held_bytes import LARGE_BYTES, ByteBudget, HeldBytes

_LENGTH: Final = b"content-length"
_ENCODING: Final = b"content-encoding"
_COPIES: Final = 3
"""A body is held as it came, as the texts in it, and as the images in those."""


@dataclass(frozen=True, kw_only=True)
class BodyLimit:
    """How large a body may be, and how long it may take to come."""

    max_bytes: int
    timeout_s: float
    """It counts seconds."""
    copies: int = _COPIES
    """So many times its bytes may be in memory. 0: they go to the disk."""


class LimitBody:
    """An ASGI application around another one, whose `receive` raises Problem.

    The state of a request gets `held_bytes`: what the request has taken of the budget.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        budget: ByteBudget,
        limit: BodyLimit,
        limit_of_path: Mapping[str, BodyLimit],
    ) -> None:
        """
        Args:
            limit: of all paths but those in `limit_of_path`.
        """
        self._app = app
        self._budget = budget
        self._limit = limit
        self._limit_of_path = limit_of_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit_of_path.get(scope["path"], self._limit)
        held = HeldBytes(self._budget)
        scope.setdefault("state", {})["held_bytes"] = held
        try:
            await self._app(scope, _LimitedBody(scope, receive, limit, held).receive, send)
        finally:
            held.release()


class _LimitedBody:
    """One request has this body."""

    def __init__(self, scope: Scope, receive: Receive, limit: BodyLimit, held: HeldBytes) -> None:
        self._headers = dict(scope["headers"])
        self._receive = receive
        self._limit = limit
        self._held = held
        self._deadline: float | None = None
        self._bytes = 0
        self._bytes_with_memory = 0
        self._is_complete = False

    async def receive(self) -> Message:
        """Return the next part of the body; after its end, that the client has gone.

        Raises:
            Problem: 413 if it is too large, 408 if it comes too slowly, 415 if it is compressed,
                503 if there is no memory for it.
        """
        if self._is_complete:
            return await self._receive()
        await self._take_memory(self._declared_bytes())
        message = await self._next_part()
        if message["type"] == "http.request":
            self._count(message)
            await self._take_memory(self._bytes)
        return message

    def _declared_bytes(self) -> int:
        """Return the length that the headers name; 0 if they name none."""
        if self._headers.get(_ENCODING, b"identity") not in (b"", b"identity"):
            message = "Content-Encoding: a body must not be compressed"
            raise Problem(415, "unsupported_encoding", message)
        text = self._headers.get(_LENGTH, b"")
        length = int(text) if text.isdigit() else 0
        if length > self._limit.max_bytes:
            raise self._too_large()
        return length

    async def _take_memory(self, length: int) -> None:
        """Take the memory for so many bytes of the body, unless they are few. Raises Problem."""
        if length > max(LARGE_BYTES, self._bytes_with_memory) and self._limit.copies:
            await self._held.take((length - self._bytes_with_memory) * self._limit.copies)
            self._bytes_with_memory = length

    async def _next_part(self) -> Message:
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + self._limit.timeout_s
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            message = f"the body did not come within {self._limit.timeout_s:g} s"
            raise Problem(408, "body_timeout", message, retry_after_s=1) from None

    def _count(self, message: MutableMapping[str, Any]) -> None:
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._limit.max_bytes:
            raise self._too_large()
        self._is_complete = not message.get("more_body", False)

    def _too_large(self) -> Problem:
        message = f"the body must have at most {self._limit.max_bytes:,} bytes"
        return Problem(413, "body_too_large", message)
