"""The queues of a simulated worker: real messages, claimed by the real scripts in a real Redis.

Input: an arrival log. Output: slots, in the order in which a worker would have claimed them at that
time of the simulation. It does not depend on devices.
"""

import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.simulation.arrivals import Arrival
from imagefleet.shared.jobs.celery_message import TASK_NAME, task_message
from imagefleet.shared.jobs.queues import list_key, queue_name
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.devices.slots import Slot, Work
from imagefleet.worker.engine.contract.interface import ImageSpec, OutputArray, Shape
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims

_PRIORITY = 3
_PROMPT = {"prompt": "a photo of an object on a wooden table"}


@dataclass(kw_only=True, eq=False)
class SimulatedJob(Work):
    """One job of the log, and when it began and ended."""

    arrival: Arrival
    started_s: float = 0.0
    """When the devices began its first step."""
    finished_s: float = 0.0
    """When its image was decoded."""

    def deliver(self, index: int, image: OutputArray, *, flagged: bool = False) -> None:
        self.finished_s = time.monotonic()  # devices that are not simulated deliver by the clock
        super().deliver(index, image, flagged=flagged)


class SimulatedQueues:
    """The queues of one fleet in a namespace of its own, and the claims of its only worker."""

    def __init__(self, server: LocalRedisServer, namespace: str, log: Sequence[Arrival]) -> None:
        self._client = connect(server.url)
        self._namespace = namespace
        self._log = deque(enumerate(log))
        self._groups = [
            QueueGroup(
                name=str(shape),
                queues=(queue_name(namespace, None, shape.height, shape.width),),
            )
            for shape in dict.fromkeys(arrival.shape for arrival in log)
        ]
        self._claims = Claims(
            no_retry_client=self._client,
            retrying_client=self._client,
            namespace=namespace,
            worker="w",
            lease_s=3_600,
        )
        self._claims.lease.acquire()
        self._arrivals = list(log)
        self._queued = 0
        self.jobs: list[SimulatedJob] = []
        """The jobs that were claimed."""

    @property
    def next_arrival_s(self) -> float | None:
        """When the next job arrives; None after the last one."""
        return self._log[0][1].time_s if self._log else None

    def claim(
        self, now_s: float, wanted: int, *, prefer: Shape | None = None, batch_steps: int = 0
    ) -> list[Slot]:
        """Claim up to `wanted` jobs of one shape that have arrived by `now_s`."""
        self._submit_until(now_s)
        if wanted < 1 or not self._queued:
            return []
        groups = [group for group in self._groups if group.name == str(prefer)] or self._groups
        claimed = self._claims.claim(groups, wanted, batch_steps=batch_steps)
        self._queued -= len(claimed)
        jobs = [self._job(each.message) for each in claimed]
        self.jobs += jobs
        return [Slot(work=job, index=0) for job in jobs]

    def _job(self, message: str) -> SimulatedJob:
        arrival = self._arrivals[int(json.loads(message)["headers"]["id"])]
        spec = ImageSpec(prompt="", num_inference_steps=arrival.steps, guidance_scale=7.5)
        return SimulatedJob(shape=arrival.shape, specs=(spec,), arrival=arrival)

    def _submit_until(self, now_s: float) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            while self._log and self._log[0][1].time_s <= now_s:
                number, arrival = self._log.popleft()
                shape = arrival.shape
                queue = queue_name(self._namespace, None, shape.height, shape.width, arrival.tenant)
                message = task_message(
                    TASK_NAME,
                    str(number),
                    _PROMPT,
                    queue=queue,
                    priority=_PRIORITY,
                    images=1,
                    steps=arrival.steps,
                )
                pipe.sadd(known_queues_key(self._namespace), queue)
                pipe.lpush(list_key(queue, _PRIORITY), message)
                self._queued += 1
            pipe.execute()
