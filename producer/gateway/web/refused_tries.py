"""Note that a try of a request was refused before it had a job, so that its repetition gets none of
another request."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from imagefleet.producer.gateway.access.wrong_keys import CODE
from imagefleet.producer.gateway.jobs.repeats import COUNT, Repeats
from imagefleet.shared.errors import BrokerUnavailable

_REPEATED: Final = frozenset({408, 429})
"""The clients of OpenAI repeat a request after these statuses, and after 500 and more."""


@contextmanager
def submitting(request: Request, *, job: str = "", order: str = "") -> Iterator[None]:
    """Note what a block submits for a request, so that its repetition has the same job or order.

    A block that is late raises BrokerUnavailable, and Redis may accept what it has sent all the
    same. After any other error there is no job and no order.
    """
    request.state.job, request.state.order = job, order
    try:
        yield
    except BrokerUnavailable:
        raise
    except Exception:
        request.state.job = request.state.order = ""
        raise


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
            state = scope.get("state", {})
            if _may_be_repeated(message.get("status", 0), state):
                is_redis_away = state.get("error") == BrokerUnavailable.code
                await self._repeats.refused(scope["path"], headers, is_redis_away=is_redis_away)
            await send(message)

        await self._app(scope, receive, note_and_send)


def _may_be_repeated(status: int, state: Mapping[str, Any]) -> bool:
    """Return whether a try has no job or order, and its repetition may get one. With a wrong key
    none will, so that Redis is not written for it."""
    if state.get("job") or state.get("order") or state.get("error") == CODE:
        return False
    return status in _REPEATED or status >= 500
