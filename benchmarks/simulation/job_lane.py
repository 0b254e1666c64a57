"""Make what works on one lane in a simulated worker."""

from dataclasses import dataclass
from typing import Final

from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.image_expiry import ImageExpiry
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.redis_client.lanes import Lane
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.execute import JobExecutor
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.image_sweeper import ImageSweeper
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.job_lanes import JobLane
from imagefleet.worker.jobs.progress import ProgressReporter
from imagefleet.worker.jobs.refuse import Refuser
from imagefleet.worker.jobs.retry_policy import RetryPolicy
from imagefleet.worker.jobs.start_attempt import JobStarter
from imagefleet.worker.queues.claims import Claims

MAX_DELIVERIES: Final = 4


@dataclass(frozen=True, kw_only=True)
class SimulatedLane:
    """What works on one lane."""

    namespace: str
    records: JobRecords
    jobs: JobLane
    outbox: Outbox
    sweeper: ImageSweeper
    runs: RunRecords


def simulated_lane(
    lane: Lane, lanes: int, worker: str, engine: FakeEngine, store: ObjectStore, lease_s: float
) -> SimulatedLane:
    """Return what a worker needs for one of so many lanes. No job is retried."""
    client, namespace = lane.client, lane.namespace
    claims = Claims(
        no_retry_client=client,
        retrying_client=client,
        namespace=namespace,
        worker=worker,
        lease_s=lease_s,
        lane=lane.number,
        lanes=lanes,
    )
    records = JobRecords(client, namespace, retention_s=3600)
    expiry = ImageExpiry(client, namespace, store.url)
    return SimulatedLane(
        namespace=namespace,
        records=records,
        jobs=_job_lane(
            claims, records, DeadLetters(client, namespace, lanes=lanes), expiry, engine, store
        ),
        outbox=Outbox(client, namespace, lanes=lanes),
        sweeper=ImageSweeper(expiry, store),
        runs=RunRecords(client, namespace, retention_s=3600),
    )


def _job_lane(
    claims: Claims,
    records: JobRecords,
    dead_letters: DeadLetters,
    expiry: ImageExpiry,
    engine: FakeEngine,
    store: ObjectStore,
) -> JobLane:
    refuser, in_flight = Refuser(claims, records, dead_letters), InFlight()
    return JobLane(
        claims=claims,
        starter=JobStarter(claims, records, refuser, engine.info, MAX_DELIVERIES, expiry),
        in_flight=in_flight,
        executor=JobExecutor(
            in_flight,
            records,
            claims,
            JobFinisher(
                store, records, engine, claims.worker, retry_time_s=0.0, in_flight=in_flight
            ),
            RetryPolicy(records, claims, dead_letters, 0),
            HealthCheck(engine, store, quarantine_s=0.0),
        ),
        progress=ProgressReporter(records),
    )
