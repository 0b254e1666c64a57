"""Many HTTP clients in one process, with as little of their own CPU as possible."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

_END_OF_HEAD: Final = b"\r\n\r\n"


class Connection:
    """One connection that is kept open for many requests (HTTP/1.1)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str) -> "Connection":
        """Connect to the server of an address."""
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Send one JSON object. Return the status and the JSON of the answer."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        status, headers = await self._read_head()
        answer = await self._reader.readexactly(int(headers["content-length"]))
        return status, json.loads(answer)

    async def open_stream(self, path: str) -> int:
        """Ask for server-sent events. Return the status; `read` returns what comes."""
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
        self._writer.write(head.encode())
        return (await self._read_head())[0]

    async def read(self) -> bytes:
        """Return the next bytes; none at the end of the answer."""
        return await self._reader.read(65_536)

    async def _read_head(self) -> tuple[int, dict[str, str]]:
        head = (await self._reader.readuntil(_END_OF_HEAD)).decode().split("\r\n")
        pairs = (line.partition(": ") for line in head[1:] if line)
        return int(head[0].split()[1]), {name.lower(): value for name, _, value in pairs}

    def close(self) -> None:
        """Cut the connection, without any farewell."""
        self._writer.transport.abort()


@dataclass(kw_only=True)
class Load:
    """What came of requests that were sent at a steady rate."""

    seconds: list[float] = field(default_factory=list)
    """From the moment at which each request was due, so that a slow server is not spared."""
    errors: int = 0
    answers: list[Any] = field(default_factory=list)


async def send_steadily(
    send: Callable[[int], Awaitable[tuple[int, Any]]], per_second: float, seconds: float
) -> Load:
    """Send requests when they are due, whether or not earlier ones were answered."""
    load = Load()
    started = time.monotonic()

    async def one(number: int) -> None:
        due = started + number / per_second
        await asyncio.sleep(due - time.monotonic())
        try:
            status, answer = await send(number)
        except (OSError, asyncio.IncompleteReadError):
            load.errors += 1
            return
        load.seconds.append(time.monotonic() - due)
        load.errors += status >= 300
        load.answers.append(answer)

    await asyncio.gather(*(one(number) for number in range(int(per_second * seconds))))
    return load


class Pool:
    """Connections that requests take in turn; a new one is opened if all are in use."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: list[Connection] = []

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """See `Connection.post`."""
        connection = self._free.pop() if self._free else await Connection.open(self._url)
        answer = await connection.post(path, body)
        self._free.append(connection)
        return answer

    def close(self) -> None:
        """Close all connections that are free."""
        for connection in self._free:
            connection.close()
