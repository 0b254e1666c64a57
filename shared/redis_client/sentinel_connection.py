"""A connection to whoever is master, also when it is made again in the midst of a command.

redis-py asks the Sentinels only when a connection leaves its pool. One that breaks while a command
is tried again goes back to the address it had: with the patience of `RETRY_FOREVER` a worker's
thread waited for a dead master for ever, and its job with it.
"""

from redis.sentinel import SentinelManagedConnection


class SentinelMasterConnection(SentinelManagedConnection):
    """Asks the Sentinels before each connect."""

    def connect_check_health(
        self, check_health: bool = True, retry_socket_connect: bool = True
    ) -> None:
        """What a command calls without a socket. `connect` asks, and comes here once more to
        connect without retries of its own."""
        if retry_socket_connect and not self._sock:
            self.connect()  # type: ignore[no-untyped-call]
        else:
            super().connect_check_health(check_health, retry_socket_connect)
