"""Remember which jobs of a caller the requests of this API have made, until they end.

The web UI runs one job at a time, for everybody, so its requests for progress and interruption name
none. Here they concern the jobs of one API key, at whichever gateway.
"""

import time
from typing import Final

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.jobs.job_ids import stored_id
from imagefleet.producer.gateway.jobs.tenant_jobs import owns
from imagefleet.producer.gateway.redis_keys import webui_jobs_key
from imagefleet.shared.jobs.status import JobStatus

_MOST: Final = 1_000
"""So many jobs of a key are remembered, the newest."""
_KEPT_S: Final = 86_400


class OpenJobs:
    """The jobs of one caller that have not ended."""

    def __init__(self, gateway: Gateway, caller: Caller) -> None:
        self._gateway = gateway
        self._caller = caller
        self._connection = gateway.client.connection
        self._key = webui_jobs_key(self._connection.namespace, caller.owner)

    async def add(self, name: str) -> None:
        """Remember a job that is submitted."""
        await self._gateway.threads.run(self._add, stored_id(self._caller.tenant, name))

    async def remove(self, name: str) -> None:
        """Forget a job that has ended."""
        await self._gateway.threads.run(self._remove, [stored_id(self._caller.tenant, name)])

    async def statuses(self) -> list[JobStatus]:
        """Return the jobs that have not ended, the oldest first. Raises BrokerUnavailable."""
        return await self._gateway.threads.run(self._read)

    def _add(self, job_id: str) -> None:
        with self._connection.translate_errors():
            pipe = self._connection.redis.pipeline(transaction=False)
            pipe.zadd(self._key, {job_id: time.time()})
            pipe.zremrangebyrank(self._key, 0, -_MOST - 1)
            pipe.expire(self._key, _KEPT_S)
            pipe.execute()

    def _remove(self, job_ids: list[str]) -> None:
        if job_ids:
            with self._connection.translate_errors():
                self._connection.redis.zrem(self._key, *job_ids)

    def _read(self) -> list[JobStatus]:
        with self._connection.translate_errors():
            job_ids = [str(each) for each in self._connection.redis.zrange(self._key, 0, -1)]
        answers = self._connection.read_statuses(job_ids) if job_ids else []
        open_jobs = [each for each in answers if isinstance(each, JobStatus) and not each.done]
        self._remove(list(set(job_ids) - {each.id for each in open_jobs}))
        return [each for each in open_jobs if owns(self._caller, each)]
