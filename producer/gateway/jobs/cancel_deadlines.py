"""Cancel jobs that have not ended in time, also if the gateway that accepted them is gone.

The deadlines are kept in Redis, and every gateway of the fleet looks at them once a second. To
cancel a job twice does no harm, so gateways need not agree on who does it.
"""

from contextlib import suppress
from typing import Any, Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.redis_keys import cancel_deadlines_key
from imagefleet.shared.errors import UnknownJob, UnreadableRecord
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types

SWEEP_EVERY_S: Final = 1.0
_MAX_READ: Final = 100
"""Jobs that one look reads."""


class CancelDeadlines:
    """This class keeps the deadlines of one fleet. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._key = cancel_deadlines_key(connection.namespace)

    def add(self, job_id: str, seconds: float) -> bool:
        """Cancel a job in `seconds`. Return False if it has a deadline, which stays.

        Args:
            job_id: the stored id.

        Raises BrokerUnavailable.
        """
        with self._connection.translate_errors():
            at = self._now(self._connection.redis.time()) + seconds
            return bool(self._connection.redis.zadd(self._key, {job_id: at}, nx=True))

    def remove(self, job_id: str) -> None:
        """Remove the deadline of a job. Raises BrokerUnavailable."""
        with self._connection.translate_errors():
            self._connection.redis.zrem(self._key, job_id)

    def sweep(self) -> int:
        """Cancel the jobs whose deadline has passed. Return how many there were.

        Raises BrokerUnavailable.
        """
        swept = 0
        while due := self._due():
            for job_id in due:
                with suppress(UnknownJob, UnreadableRecord):
                    self._connection.cancel(job_id)
                self.remove(job_id)
            swept += len(due)
        return swept

    def _due(self) -> list[str]:
        redis = self._connection.redis
        with self._connection.translate_errors(), redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zrange(self._key, 0, _MAX_READ - 1, withscores=True)
            clock, deadlines = read_ignoring_wrong_types(pipe)
        now = self._now(clock)
        return [job_id for job_id, at in deadlines or () if at <= now]

    @staticmethod
    def _now(clock: Any) -> float:
        """Return Redis' time in Unix seconds."""
        return float(clock[0]) + float(clock[1]) / 1e6
