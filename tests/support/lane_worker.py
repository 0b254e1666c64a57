"""A worker of one lane without devices, for tests of lanes in a cluster."""

from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import JobError
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.transitions import Acknowledgement, StartRequest
from imagefleet.shared.redis_client.connection import connect_lanes
from imagefleet.shared.redis_client.lanes import Lane
from imagefleet.worker.queues.claim_types import Claimed, QueueGroup
from imagefleet.worker.queues.claims import Claims
from tests.support.records import result_of_one_image
from tests.support.redis_cluster import RedisCluster


class LaneWorker:
    """The worker claims the jobs of a lane, and ends them as succeeded."""

    def __init__(self, cluster: RedisCluster, lane: Lane, fleet: str, lanes: int) -> None:
        claiming = connect_lanes(cluster.url, fleet, lanes=lanes, retries=0)[lane.number]
        self.claims = Claims(
            no_retry_client=claiming.client,
            retrying_client=lane.client,
            namespace=lane.namespace,
            worker="w",
            lease_s=60,
        )
        self.claims.lease.acquire()
        self.records = JobRecords(lane.client, lane.namespace, retention_s=3600)
        self._dead_letters = DeadLetters(lane.client, lane.namespace)
        self._group = QueueGroup(name="native", queues=(f"{lane.namespace}.default.native",))

    def claim(self) -> list[Claimed]:
        return self.claims.claim([self._group], 8)

    def start(self, job_id: str, claimed: Claimed) -> None:
        claim = (self.claims.key, claimed.tag)
        request = StartRequest(job_id=job_id, attempt=claimed.attempt, claim=claim)
        [started] = self.records.start(request)
        assert started.happened

    def finish(self, job_id: str, claimed: Claimed) -> None:
        end = Acknowledgement(
            claims=self.claims.key, deliveries=self.claims.deliveries, tag=claimed.tag
        )
        ended = self.records.succeed(
            job_id, claimed.attempt, result_of_one_image(), None, acknowledgement=end
        )
        assert (ended.happened, ended.acknowledged) == (True, True)

    def work(self) -> int:
        """Claim and finish what waits; return how many jobs that were."""
        done = 0
        while claimed := self.claim():
            for message in claimed:
                job_id = _job_id(message)
                self.start(job_id, message)
                self.finish(job_id, message)
                done += 1
        return done

    def give_up(self) -> None:
        """Claim and fail what waits, with a dead letter each."""
        error = JobError(code="worker_error", message="m")
        while claimed := self.claim():
            for message in claimed:
                job_id = _job_id(message)
                self.start(job_id, message)
                assert self.records.fail(job_id, message.attempt, error, None).happened
                self._dead_letters.add(
                    message.list_key, message.message, code="c", reason="r", deliveries=1
                )
                self.claims.ack(message.tag)


def _job_id(claimed: Claimed) -> str:
    return claimed.message.partition('"id":"')[2].partition('"')[0]
