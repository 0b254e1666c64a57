"""Share work between the gateways of a fleet: a sorted set says when each piece of it is due.

A gateway that claims a piece has it for some seconds. If the gateway dies, the piece is due again
then, and another one takes it. So each piece of work must be safe to begin twice.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.redis_client.scripts import load_script


class DueTimes:
    """When each member of one set is due. Threads may share it."""

    def __init__(self, connection: Connection, key: str, claim_s: float) -> None:
        """
        Args:
            key: of the sorted set in Redis.
            claim_s: seconds after which a claimed member is due again, unless it is `put` again.
        """
        self._connection = connection
        self._key = key
        self.claim_s: Final = claim_s
        self._claim = load_script(connection.redis, __package__, "claim_due")

    def claim(self) -> str | None:
        """Return the member that is due first, and hide it for `claim_s`; None if none is due.

        Raises BrokerUnavailable.
        """
        with self._connection.translate_errors():
            return cast(str | None, self._claim(keys=[self._key], args=[self.claim_s]))

    def put(
        self, member: str, due_in_s: float, also: Callable[[Any], object] | None = None
    ) -> None:
        """Let a member be due after some seconds from now.

        Args:
            also: gives a pipeline commands that take place together with this, or not at all.

        Raises BrokerUnavailable.
        """
        redis = self._connection.redis
        with self._connection.translate_errors(), redis.pipeline(transaction=True) as pipe:
            seconds, microseconds = redis.time()
            pipe.zadd(self._key, {member: seconds + microseconds / 1e6 + due_in_s})
            if also is not None:
                also(pipe)
            pipe.execute()

    @contextmanager
    def held(self, member: str) -> Iterator[None]:
        """Keep a claimed member hidden while the block runs, however long that takes."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(self.claim_s / 3):
                with suppress(BrokerUnavailable):
                    self.put(member, self.claim_s)

        renewer = threading.Thread(target=renew, name="imagefleet-claim", daemon=True)
        renewer.start()
        try:
            yield
        finally:
            ended.set()
            renewer.join()

    def forget(self, member: str) -> None:
        """Remove a member. Raises BrokerUnavailable."""
        with self._connection.translate_errors():
            self._connection.redis.zrem(self._key, member)
