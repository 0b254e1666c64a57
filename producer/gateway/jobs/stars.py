"""Keep which jobs a tenant has starred, to find them again.

A star is kept as long as the record of its job: a page of starred jobs removes those that have no
record any more.
"""

from collections.abc import Collection, Sequence

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.jobs.job_ids import tenant_key_part
from imagefleet.producer.gateway.jobs.tenant_index import MAX_JOBS, UNFINISHED_S
from imagefleet.producer.gateway.jobs.timeline import MICROSECONDS, Timeline
from imagefleet.producer.gateway.redis_keys import starred_jobs_key
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.lanes import Lane
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types


class JobStars:
    """This class has the stars of all tenants of a fleet. Threads may share it.

    Jobs are named by their stored ids, because a tenant may also star what its Python programs have
    submitted.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._kept_s = connection.settings.retention_s + UNFINISHED_S
        self._script = load_script(connection.redis, __package__, "star_job")

    def set(self, tenant: str | None, status: JobStatus) -> None:
        """Star a job. Of very many, the newest jobs keep their stars. Raises BrokerUnavailable."""
        at = int(status.submitted_at * MICROSECONDS)
        lane, key = self._place(tenant)
        args: list[str | int] = [status.id, at, MAX_JOBS, self._kept_s]
        with self._connection.translate_errors():
            self._script(keys=[key], args=args, client=lane.client)

    def remove(self, tenant: str | None, job_ids: Collection[str]) -> None:
        """Remove stars; of jobs without one it is no error. Raises BrokerUnavailable."""
        if job_ids:
            lane, key = self._place(tenant)
            with self._connection.translate_errors():
                lane.client.zrem(key, *job_ids)

    def among(self, tenant: str | None, job_ids: Sequence[str]) -> frozenset[str]:
        """Return those of these jobs that have a star. Raises BrokerUnavailable."""
        lane, key = self._place(tenant)
        with self._connection.translate_errors():
            pipe = lane.client.pipeline(transaction=False)
            for job_id in job_ids:
                pipe.zscore(key, job_id)
            scores = read_ignoring_wrong_types(pipe)
        return frozenset(
            job_id for job_id, score in zip(job_ids, scores, strict=True) if score is not None
        )

    def timeline(self, tenant: str | None) -> Timeline:
        """Return the list of the starred jobs of a tenant, by the times of their submission."""
        lane, key = self._place(tenant)
        return Timeline(lane=lane, key=key, prefix="")

    def _place(self, tenant: str | None) -> tuple[Lane, str]:
        """Return the lane and the key of the list of a tenant."""
        part = tenant_key_part(tenant)
        lane = self._connection.lanes.of(part)
        return lane, starred_jobs_key(lane.namespace, part)
