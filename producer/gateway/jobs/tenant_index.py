"""Keep a list of the jobs that each tenant has submitted over HTTP, by time.

The records of jobs have no index. This one costs each such job one call of a script, and a page one
range of a sorted set, however many jobs there are. A job is indexed before it is submitted, so none
that was accepted is missing.
"""

import time
from collections.abc import Iterable
from typing import Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.jobs.job_ids import shown_id, stored_id, tenant_key_part
from imagefleet.producer.gateway.jobs.timeline import MICROSECONDS, Entry, Timeline
from imagefleet.producer.gateway.redis_keys import tenant_jobs_key
from imagefleet.shared.redis_client.lanes import Lane
from imagefleet.shared.redis_client.scripts import load_script

MAX_JOBS: Final = 100_000
"""Jobs of a tenant that are listed."""
UNFINISHED_S: Final = 30 * 24 * 3_600
"""A job is listed for so long beside the time for which records of ended jobs are kept."""
_LOST_S: Final = 3_600
"""A job that was indexed so long ago, and has no record, was refused, deleted or has expired."""


class TenantIndex:
    """This class is the index of all tenants of a fleet. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._kept_s = connection.settings.retention_s + UNFINISHED_S
        self._add = load_script(connection.redis, __package__, "index_job")
        self._remove = load_script(connection.redis, __package__, "unindex_job")

    def add(self, tenant: str | None, name: str) -> bool:
        """Add a job. Return False if it is in the index.

        Args:
            name: its id, as the tenant knows it.

        Raises BrokerUnavailable.
        """
        lane, key = self._place(tenant)
        args: list[str | int] = [name, MAX_JOBS, self._kept_s]
        with self._connection.translate_errors():
            return bool(self._add(keys=[key], args=args, client=lane.client))

    def remove_refused(self, tenant: str | None, name: str) -> None:
        """Remove a job that was not accepted. It stays if it has a record: another request has
        submitted it meanwhile. Raises BrokerUnavailable."""
        lane, key = self._place(tenant)
        job_id, records = stored_id(tenant, name), self._connection.records
        with self._connection.translate_errors():
            if records.is_elsewhere(lane, job_id):
                return
            keys = [key, *records.key_in(lane, job_id)]
            self._remove(keys=keys, args=[name], client=lane.client)
            # If it is accepted after the second look, its request adds it to the index again.
            is_accepted = records.is_elsewhere(lane, job_id)
        if is_accepted:
            self.add(tenant, name)

    def timeline(self, tenant: str | None) -> Timeline:
        """Return the list of a tenant."""
        lane, key = self._place(tenant)
        return Timeline(lane=lane, key=key, prefix=stored_id(tenant, ""))

    def forget_lost(self, tenant: str | None, lost: Iterable[Entry]) -> None:
        """Remove jobs that have no record any more, if they are not so new that it may still come.

        Raises BrokerUnavailable.
        """
        latest = (time.time() - _LOST_S) * MICROSECONDS
        if old := [shown_id(tenant, each.job_id) for each in lost if each.at < latest]:
            lane, key = self._place(tenant)
            with self._connection.translate_errors():
                lane.client.zrem(key, *old)

    def _place(self, tenant: str | None) -> tuple[Lane, str]:
        """Return the lane and the key of the list of a tenant."""
        part = tenant_key_part(tenant)
        lane = self._connection.lanes.of(part)
        return lane, tenant_jobs_key(lane.namespace, part)
