"""Make what handles the jobs of one lane in a simulated worker."""

from typing import Final

from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.image_expiry import ImageExpiry
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.execute import JobExecutor
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.job_lanes import JobLane
from imagefleet.worker.jobs.progress import ProgressReporter
from imagefleet.worker.jobs.refuse import Refuser
from imagefleet.worker.jobs.retry_policy import RetryPolicy
from imagefleet.worker.jobs.start_attempt import JobStarter
from imagefleet.worker.queues.claims import Claims

MAX_DELIVERIES: Final = 4


def job_lane(
    claims: Claims,
    records: JobRecords,
    dead_letters: DeadLetters,
    expiry: ImageExpiry,
    engine: FakeEngine,
    store: ObjectStore,
) -> JobLane:
    """Return what handles the jobs of the lane of these keys. No job is retried."""
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
