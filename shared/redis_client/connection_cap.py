"""Limit how many connections the threads of one client open; a thread waits for a free one.

redis-py's own blocking pool does not support Sentinels, and its lock would hang a signal handler
that interrupts the thread that holds it.
"""

import threading
from typing import Any

from redis import ConnectionPool
from redis.sentinel import SentinelConnectionPool


class _Cap:
    """Lets this many connections leave a pool at the same time. The others wait without a limit."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._free_places = int(options.pop("connection_cap"))
        self._place_freed = threading.Condition()  # a signal handler may interrupt its holder
        self._lent: set[int] = set()
        super().__init__(*args, **options)

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """Return a connection, as soon as one is free."""
        with self._place_freed:
            self._place_freed.wait_for(lambda: self._free_places > 0)
            self._free_places -= 1
        try:
            connection = super().get_connection(*args, **options)  # type: ignore[misc]
        except BaseException:
            self._free_place()
            raise
        self._lent.add(id(connection))
        return connection

    def release(self, connection: Any) -> None:
        """Take a connection back. redis-py also releases one that it could not connect."""
        was_lent = id(connection) in self._lent
        self._lent.discard(id(connection))
        super().release(connection)  # type: ignore[misc]
        if was_lent:
            self._free_place()

    def _free_place(self) -> None:
        with self._place_freed:
            self._free_places += 1
            self._place_freed.notify()


class CappedConnectionPool(_Cap, ConnectionPool):
    """The connections to one server."""


class CappedSentinelPool(_Cap, SentinelConnectionPool):
    """The connections to the master that the Sentinels name."""
