"""Cancel jobs that have not ended in time, also if the gateway that accepted them is gone.

The deadlines are kept in Redis, and every gateway of the fleet looks at them once a second. To
cancel a job twice does no harm, so gateways need not agree on who does it.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.redis_keys import cancel_deadlines_key
from imagefleet.producer.gateway.threads import Threads
from imagefleet.shared.errors import BrokerUnavailable, UnknownJob, UnreadableRecord
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types

log = logging.getLogger(__name__)

_SWEEP_EVERY_S: Final = 1.0
_MAX_SWEPT: Final = 100
"""Jobs that one look cancels."""


class CancelDeadlines:
    """This class keeps the deadlines of one fleet. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._key = cancel_deadlines_key(connection.settings.namespace)

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
        due = self._due()
        for job_id in due:
            with suppress(UnknownJob, UnreadableRecord):
                self._connection.cancel(job_id)
            self.remove(job_id)
        return len(due)

    async def sweep_for_ever(self, threads: Threads) -> None:
        """Sweep once a second until the task is cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            try:
                while await threads.run(self.sweep) == _MAX_SWEPT:
                    pass
            except BrokerUnavailable as error:
                log.warning("no job is cancelled at its deadline while Redis is away: %s", error)
            except Exception:  # of any kind: later deadlines would pass unseen
                log.exception("jobs are not cancelled at their deadlines")

    def _due(self) -> list[str]:
        redis = self._connection.redis
        with self._connection.translate_errors(), redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zrange(self._key, 0, _MAX_SWEPT - 1, withscores=True)
            clock, deadlines = read_ignoring_wrong_types(pipe)
        now = self._now(clock)
        return [job_id for job_id, at in deadlines or () if at <= now]

    @staticmethod
    def _now(clock: Any) -> float:
        """Return Redis' time in Unix seconds."""
        return float(clock[0]) + float(clock[1]) / 1e6
