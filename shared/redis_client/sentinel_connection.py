"""Connect to the current Redis master, also when reconnecting during a command.

redis-py asks the Sentinels only when a connection leaves its pool. A connection that breaks while a
command is retried reconnects to its old address. With `RETRY_FOREVER` a worker's thread, and its
job, would wait for a dead master forever.
"""

from redis.sentinel import SentinelManagedConnection


class SentinelMasterConnection(SentinelManagedConnection):
    """This connection asks the Sentinels for the master before each connect."""

    def connect_check_health(
        self, check_health: bool = True, retry_socket_connect: bool = True
    ) -> None:
        """Connect to the current master.

        A command calls this method if it has no socket. `connect` asks the Sentinels, and calls
        this method again with `retry_socket_connect=False`.
        """
        if retry_socket_connect and not self._sock:
            self.connect()  # type: ignore[no-untyped-call]
        else:
            super().connect_check_health(check_health, retry_socket_connect)
