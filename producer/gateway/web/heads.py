"""Close connections whose request does not begin in time.

uvicorn gives a client as long as it likes for the first line and the headers of a request, so a few
clients that send one byte a second would take all file descriptors.
"""

import asyncio
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class _BoundHeads(H11Protocol):
    """uvicorn's protocol, which waits only so long for the head of each request."""

    def __init__(self, *arguments: Any, head_s: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_s = head_s
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:  # so only a part of a head has come
            self._start_timer()
        else:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def bound_heads(head_s: float) -> Any:
    """Return the protocol for uvicorn that waits `head_s` seconds for the head of a request."""
    return partial(_BoundHeads, head_s=head_s)
