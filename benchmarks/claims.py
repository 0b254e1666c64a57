"""What a claim costs Redis, and how well it fills batches with jobs of like step counts.

`python -m benchmarks.claims` starts its own Redis and claims real messages, a batch at a time. One
runs as long as its longest job: told are the slot-steps that are run, by those that are wanted.
The same jobs are claimed once as they come, without the header `steps`, and once with it.

What it does not show: devices, several workers at one queue, jobs that arrive meanwhile.
"""

import json
import random
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks.report import print_json
from imagefleet.shared.jobs.celery_message import TASK_NAME, task_message
from imagefleet.shared.jobs.queues import list_key, queue_name
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.queues.claims import Claims, QueueGroup

JOBS = 8_000
PROMPT = {"prompt": "a photo of an object on a wooden table, studio light, 35mm, " * 4}
PRIORITY = 3
FEWEST, MOST = 8, 28
KINDS = {"as_they_come": False, "alike": True}
"""How jobs are claimed, and whether their messages say their steps."""
TENANTS = {8: (1, 2, 4, 8), 64: (1, 4, 30), 256: (30, 100)}
"""How many have jobs waiting, by the pictures of a batch."""
MANY_TENANTS, MANY_TENANTS_CAPACITY = 1_000, 8

Figures = dict[str, float]


class Stream:
    """Messages of some tenants in a namespace of their own, and a worker's claims."""

    def __init__(self, server: LocalRedisServer, namespace: str) -> None:
        self._client = connect(server.url)
        self._namespace = namespace
        self._groups = [
            QueueGroup(name="native", queues=(queue_name(namespace, None, None, None),))
        ]
        self._claims = Claims(
            no_retry_client=self._client,
            retrying_client=self._client,
            namespace=namespace,
            worker="w",
            lease_s=600,
        )
        self._claims.acquire_lease()

    def add(self, counts: Sequence[int], tenants: int, *, said: bool = True) -> None:
        """A job of each step count, `tenants` in turn. Its id tells it; if `said`, a header."""
        queues = [queue_name(self._namespace, None, None, None, f"t{n}") for n in range(tenants)]
        with self._client.pipeline(transaction=False) as pipe:
            pipe.sadd(known_queues_key(self._namespace), *queues)
            for number, steps in enumerate(counts):
                queue = queues[number % tenants]
                message = task_message(
                    TASK_NAME,
                    f"{number}-{steps}",
                    PROMPT,
                    queue=queue,
                    priority=PRIORITY,
                    images=1,
                    steps=steps if said else None,
                )
                pipe.lpush(list_key(queue, PRIORITY), message)
            pipe.execute()

    def claim_all(self, capacity: int) -> tuple[list[list[int]], float]:
        """The step counts of each batch, and the server's CPU milliseconds for a claim."""
        before, batches = self._cpu_s(), []
        while claimed := self._claims.claim(self._groups, capacity):
            ids = [json.loads(each.message)["headers"]["id"] for each in claimed]
            batches.append([int(job_id.partition("-")[2]) for job_id in ids])
        return batches, 1e3 * (self._cpu_s() - before) / len(batches)

    def _cpu_s(self) -> float:
        told = self._client.info("cpu")
        return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


def slot_steps(server: LocalRedisServer) -> Figures:
    """Slot-steps run by those wanted: as they come, and the alike together."""
    figures: Figures = {}
    rng = random.Random(1)
    counts = [rng.randint(FEWEST, MOST) for _ in range(JOBS)]
    cases = [(capacity, tenants) for capacity, some in TENANTS.items() for tenants in some]
    for (capacity, tenants), (kind, said) in product(cases, KINDS.items()):
        case = f"{kind}_{capacity}_from_{tenants}_tenants"
        stream = Stream(server, case)
        stream.add(counts, tenants, said=said)
        batches, cost = stream.claim_all(capacity)
        run = sum(max(batch) * len(batch) for batch in batches)
        figures[f"run_by_wanted_{case}"] = run / sum(counts)
        figures[f"claim_ms_{case}"] = cost
    return figures


def many_tenants(server: LocalRedisServer) -> Figures:
    """A claim while a thousand tenants have jobs waiting, and the same worker's after they left."""
    stream = Stream(server, "many")
    counts = [20] * 2 * MANY_TENANTS
    stream.add(counts, MANY_TENANTS)
    _, busy = stream.claim_all(MANY_TENANTS_CAPACITY)
    stream.add(counts, 8)
    _, after = stream.claim_all(MANY_TENANTS_CAPACITY)
    return {"claim_ms_1000_tenants": busy, "claim_ms_8_tenants_after_them": after}


def main() -> None:
    with tempfile.TemporaryDirectory() as name, LocalRedisServer(Path(name)) as server:
        figures = slot_steps(server) | many_tenants(server)
    for figure, value in figures.items():
        print(f"{figure:50} {value:8.3f}")
    print_json("claims", {figure: round(value, 3) for figure, value in figures.items()})


if __name__ == "__main__":
    main()
