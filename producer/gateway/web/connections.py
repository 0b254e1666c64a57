"""Close connections of clients that send the head of a request, or read an answer, too slowly.

uvicorn gives a client as long as it likes for both. A few clients that send one byte a second would
take all file descriptors; a few that do not read their images would keep them in memory.
"""

import asyncio
import logging
import socket
import struct
from functools import partial
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from imagefleet.producer.gateway.web.metrics import REFUSED

log = logging.getLogger("imagefleet.http")
_FORGET_UNSENT: Final = struct.pack("ii", 1, 0)
"""With this the system drops what lies in its own buffer of the connection; see socket(7)."""


class _BoundConnection(H11Protocol):
    """uvicorn's protocol, which waits only so long for the head of each request, and for the client
    to read what is sent."""

    def __init__(self, *arguments: Any, head_s: float, send_s: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_s, self._send_s = head_s, send_s
        self._head_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:  # so only a part of a head has come
            self._start_head_timer()
        else:
            self._stop_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client: 64 kB that it has not read lie in the buffer of the connection."""
        super().pause_writing()
        self._stop_send_timer()
        self._send_timer = self.loop.call_later(self._send_s, self._cut)

    def resume_writing(self) -> None:
        """Go on: the client has read most of the buffer."""
        self._stop_send_timer()
        super().resume_writing()

    def _cut(self) -> None:
        REFUSED.labels("slow_reader").inc()
        client = self.client[0] if self.client else ""
        log.warning("cut a connection whose client %s read nothing for %g s", client, self._send_s)
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET_UNSENT)
        self.transport.abort()  # `close` would wait until the client has read everything

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_s, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None


def bound_connections(head_s: float, send_s: float) -> Any:
    """Return the protocol for uvicorn that waits `head_s` seconds for the head of a request, and
    `send_s` for the client to read the next 64 kB of an answer."""
    return partial(_BoundConnection, head_s=head_s, send_s=send_s)
