"""Note that a try of a request was refused before it had a job, so that its repetition gets none of
another request."""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from imagefleet.producer.gateway.jobs.repeats import COUNT, Repeats

_REPEATED: Final = frozenset({408, 429})
"""The clients of OpenAI repeat a request after these statuses, and after 500 and more."""


class NoteRefusedTries:
    """This ASGI application notes the refusals of another one, before they are sent."""

    def __init__(self, app: ASGIApp, *, repeats: Repeats) -> None:
        self._app = app
        self._repeats = repeats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        if COUNT not in headers:
            await self._app(scope, receive, send)
            return

        async def note_and_send(message: Message) -> None:
            status = message.get("status", 0)
            if (status in _REPEATED or status >= 500) and not scope.get("state", {}).get("job"):
                await self._repeats.refused(scope["path"], headers)
            await send(message)

        await self._app(scope, receive, note_and_send)
