"""A connection over a Unix socket that survives a failed health check.

redis-py 8.1 reports a failed connection with its `host` and `port`, also that of a Unix socket,
which has no `port`: an AttributeError takes the place of the error that would be retried.
"""

from redis.connection import UnixDomainSocketConnection


class UnixConnection(UnixDomainSocketConnection):
    """This connection over a Unix socket has the attribute that redis-py's reports read."""

    port: int | None = None
