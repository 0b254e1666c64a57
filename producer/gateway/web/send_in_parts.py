"""Send answers in small parts, each after the client has read most of those before.

A part that was given to a connection lies in its buffer until the client reads it. So an answer in
one part would be in memory twice, and nobody would know when it was read.
"""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PART: Final = 65_536


class SendInParts:
    """This ASGI application cuts the bodies of another one's answers into parts of 64 kB."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_parts(message: Message) -> None:
            body = message.get("body", b"")
            if message["type"] != "http.response.body" or len(body) <= _PART:
                await send(message)
                return
            for at in range(0, len(body), _PART):
                is_last = at + _PART >= len(body)
                more = message.get("more_body", False) or not is_last
                part = bytes(body[at : at + _PART])
                await send({"type": message["type"], "body": part, "more_body": more})

        await self._app(scope, receive, send_in_parts)
