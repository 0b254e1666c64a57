"""No job of a fleet in a cluster is lost or ends twice while masters die and slots move."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import redis

from imagefleet import State
from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import claims_key, job_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.transitions import Acknowledgement, StartRequest
from imagefleet.shared.redis_client.connection import RETRY_FOREVER, connect_lanes
from imagefleet.shared.redis_client.lanes import Lane
from imagefleet.worker.queues.claim_types import Claimed, QueueGroup
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lane_claims import LaneClaims
from imagefleet.worker.queues.lease_keeper import LeaseKeeper
from tests.support.processes import until
from tests.support.records import result_of_one_image
from tests.support.redis_cluster import RedisCluster

LANES: Final = 4
LEASE_S: Final = 4.0
_PACE_S: Final = 0.02
"""A thread pauses so long before each job, so that two workers keep up with four threads."""
REQUEST: Final = JobRequest.parse({"prompt": "a"})


class LaneFleetWorker:
    """A worker without devices, which claims from all lanes in one thread until it is stopped."""

    def __init__(self, url: str, namespace: str, name: str) -> None:
        claiming = connect_lanes(url, namespace, lanes=LANES, retries=0)
        retrying = connect_lanes(url, namespace, lanes=LANES, retries=RETRY_FOREVER)
        self._records = [JobRecords(lane.client, lane.namespace, 3600) for lane in retrying]
        self._group = QueueGroup(
            name="native", queues=(f"{claiming.first.namespace}.default.native",)
        )

        def make(lane: Lane) -> Claims:
            return Claims(
                no_retry_client=lane.client,
                retrying_client=retrying[lane.number].client,
                namespace=lane.namespace,
                worker=name,
                lease_s=LEASE_S,
                lane=lane.number,
                lanes=LANES,
            )

        parts = [make(lane) for lane in claiming]
        self._claims = LaneClaims(parts, [lane.namespace for lane in claiming])
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True)]
        self._keepers = [
            LeaseKeeper(part, JobRecords(lane.client, lane.namespace, 3600), LEASE_S, lambda: None)
            for part, lane in zip(self._claims.parts, claiming, strict=True)
        ]

    def start(self) -> None:
        for part, keeper in zip(self._claims.parts, self._keepers, strict=True):
            part.lease.acquire()
            keeper.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
        for keeper in self._keepers:
            keeper.stop()

    def _work(self) -> None:
        while not self._stopped.is_set():
            try:
                claimed = self._claims.claim(
                    [self._group], 4, max_messages=4, suspect_from=1_000_000
                )
            except (redis.RedisError, LeaseLost):
                claimed = []
            for message in claimed:
                self._run(message)
            if not claimed:
                time.sleep(0.05)

    def _run(self, message: Claimed) -> None:
        """Start and end one job, as a worker does: what another attempt has done stays."""
        claims = self._claims.of(message.tag)
        records = self._records[self._claims.parts.index(claims)]
        job_id = message.message.partition('"id":"')[2].partition('"')[0]
        claim = (claims.key, message.tag)
        [started] = records.start(StartRequest(job_id=job_id, attempt=message.attempt, claim=claim))
        is_acknowledged = False
        if started.happened:
            end = Acknowledgement(claims=claims.key, deliveries=claims.deliveries, tag=message.tag)
            ended = records.succeed(
                job_id, message.attempt, result_of_one_image(), None, acknowledgement=end
            )
            is_acknowledged = ended.happened and ended.acknowledged
        if is_acknowledged:
            claims.forget([message.tag])
        else:
            claims.ack(message.tag, records.key(job_id))


class Producer:
    """Some threads submit jobs one by one, and count those that a replica has, too."""

    def __init__(self, url: str, namespace: str) -> None:
        self.accepted: list[str] = []
        self._fleet = url, namespace
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._submit, args=(name,), daemon=True) for name in "abcd"
        ]

    def _submit(self, name: str) -> None:
        # WAIT concerns what its connection has written, so each thread has connections of its own.
        url, namespace = self._fleet
        lanes = connect_lanes(url, namespace, lanes=LANES)
        for number in itertools.count():
            if self._stopped.is_set():
                lanes.close()
                return
            lane = lanes.of(job_id := f"{name}-{number}")
            records = JobRecords(lane.client, lane.namespace, 3600)
            self._stopped.wait(_PACE_S)
            try:
                records.submit([(job_id, REQUEST)])
                if lane.client.wait(1, 200) == 1:
                    self.accepted.append(job_id)
            except redis.RedisError:
                time.sleep(0.05)

    @contextmanager
    def submitting(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in self._threads:
                thread.join(60)


class Fleet:
    """Two workers and a producer of a fleet in a cluster, and what the audit reads."""

    def __init__(self, cluster: RedisCluster, namespace: str) -> None:
        self._cluster = cluster
        self._lanes = connect_lanes(cluster.url, namespace, lanes=LANES)
        self._workers = [LaneFleetWorker(cluster.url, namespace, name) for name in ("w1", "w2")]
        self._producer = Producer(cluster.url, namespace)

    @contextmanager
    def working(self) -> Iterator[Producer]:
        """Submit and work inside the block. At its end every accepted job has succeeded."""
        for worker in self._workers:
            worker.start()
        with self._producer.submitting():
            yield self._producer
        accepted = self._producer.accepted
        until(lambda: set(self._read(accepted, "state")) == {State.SUCCEEDED}, 300)
        until(lambda: not any(self._waiting(lane) for lane in self._lanes), 300)
        for worker in self._workers:
            worker.stop()
        assert set(self._read(accepted, "ends")) == {"1"}
        self._lanes.close()

    def break_parts(self, number: int) -> None:
        """Move one slot as a whole and one key by key, then kill a master and start it again; each
        while jobs go on."""
        as_a_whole, by_key, killed = (
            f"{self._lanes[(number + at) % LANES].namespace}" for at in range(3)
        )
        self._cluster.move_slot_of(as_a_whole)
        self._go_on(40)
        with self._cluster.moving_slot_of(by_key):
            self._go_on(20)
        server = self._cluster.kill_master_of(killed)
        self._cluster.master_of(killed)  # once its replica has taken over
        self._go_on(40)
        self._cluster.restart(server)

    def _go_on(self, jobs: int) -> None:
        """Return when so many more jobs are accepted."""
        wanted = len(self._producer.accepted) + jobs
        until(lambda: len(self._producer.accepted) >= wanted)

    def _read(self, job_ids: list[str], field: str) -> list[str | None]:
        def ask(lane: Lane, own: list[str]) -> list[str | None]:
            with lane.client.pipeline(transaction=False) as pipe:
                for job_id in own:
                    pipe.hget(job_key(lane.namespace, job_id), field)
                return pipe.execute()

        return self._lanes.answer_each(job_ids, str, ask)

    def _waiting(self, lane: Lane) -> int:
        """Return how many messages of a lane are in its queue, or held by workers."""
        queue = list_key(f"{lane.namespace}.default.native", REQUEST.priority)
        held = [claims_key(lane.namespace, name) for name in ("w1", "w2")]
        return int(lane.client.llen(queue)) + sum(int(lane.client.hlen(key)) for key in held)


def test_no_accepted_job_is_lost_or_ends_twice_while_masters_die_and_slots_move(
    tmp_path: Path, namespace: str
) -> None:
    with RedisCluster(tmp_path, replicas=True) as cluster:
        fleet = Fleet(cluster, namespace)
        with fleet.working() as producer:
            for number in range(2):
                fleet.break_parts(number)
        assert len(producer.accepted) >= 2 * 100
        print(f"{len(producer.accepted)} jobs were accepted")
