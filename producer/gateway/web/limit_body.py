"""Bound the body of each request: its bytes, and the seconds in which it must have come."""

import asyncio
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from imagefleet.producer.gateway.problems import Problem

_LENGTH: Final = b"content-length"
_ENCODING: Final = b"content-encoding"


@dataclass(frozen=True, kw_only=True)
class BodyLimit:
    """How large a body may be, and how long it may take to come."""

    max_bytes: int
    timeout_s: float
    """It counts seconds."""


class LimitBody:
    """An ASGI application around another one, whose `receive` raises Problem."""

    def __init__(
        self, app: ASGIApp, *, limit: BodyLimit, limit_of_path: Mapping[str, BodyLimit]
    ) -> None:
        """
        Args:
            limit: of all paths but those in `limit_of_path`.
        """
        self._app = app
        self._limit = limit
        self._limit_of_path = limit_of_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            limit = self._limit_of_path.get(scope["path"], self._limit)
            receive = _LimitedBody(scope, receive, limit).receive
        await self._app(scope, receive, send)


class _LimitedBody:
    """One request has this body."""

    def __init__(self, scope: Scope, receive: Receive, limit: BodyLimit) -> None:
        self._headers = dict(scope["headers"])
        self._receive = receive
        self._max_bytes = limit.max_bytes
        self._timeout_s = limit.timeout_s
        self._deadline: float | None = None
        self._bytes = 0
        self._is_complete = False

    async def receive(self) -> Message:
        """Return the next part of the body; after its end, that the client has gone.

        Raises:
            Problem: 413 if it is too large, 408 if it comes too slowly, 415 if it is compressed.
        """
        if self._is_complete:
            return await self._receive()
        self._check_headers()
        message = await self._next_part()
        if message["type"] == "http.request":
            self._count(message)
        return message

    def _check_headers(self) -> None:
        if self._headers.get(_ENCODING, b"identity") not in (b"", b"identity"):
            message = "Content-Encoding: a body must not be compressed"
            raise Problem(415, "unsupported_encoding", message)
        length = self._headers.get(_LENGTH, b"0")
        if length.isdigit() and int(length) > self._max_bytes:
            raise self._too_large()

    async def _next_part(self) -> Message:
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + self._timeout_s
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            message = f"the body did not come within {self._timeout_s:g} s"
            raise Problem(408, "body_timeout", message, retry_after_s=1) from None

    def _count(self, message: MutableMapping[str, Any]) -> None:
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._max_bytes:
            raise self._too_large()
        self._is_complete = not message.get("more_body", False)

    def _too_large(self) -> Problem:
        message = f"the body must have at most {self._max_bytes:,} bytes"
        return Problem(413, "body_too_large", message)
