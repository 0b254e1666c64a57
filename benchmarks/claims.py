"""Measure what a claim costs Redis, and how well step affinity fills batches.

`python -m benchmarks.claims` starts its own Redis and claims real messages, a batch at a time. A
batch runs as long as its longest job. The benchmark reports the slot-steps that the batches run,
divided by those that the jobs need. The same jobs are claimed in order of arrival, without the
header `steps`, and then with it, which turns step affinity on.

It does not show devices, several workers at one queue, or jobs that arrive during the claims.
"""

import json
import math
import random
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks.report import parser_of, print_json
from imagefleet.shared.jobs.celery_message import TASK_NAME, task_message
from imagefleet.shared.jobs.queues import list_key, queue_name
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims

JOBS = 8_000
PROMPT = {"prompt": "a photo of an object on a wooden table, studio light, 35mm, " * 4}
PRIORITY = 3
MIN_STEPS, MAX_STEPS = 8, 28
KINDS = {"in_order": False, "step_affinity": True}
"""The order of the claims, and whether messages have the header `steps`."""
TENANTS = {8: (1, 2, 4, 8), 64: (1, 4, 30), 256: (30, 100)}
"""Numbers of tenants with waiting jobs, by the images of a batch."""
MANY_TENANTS, MANY_TENANTS_CAPACITY = 1_000, 8
INVENTED_TENANTS, INVENTED_CLAIMS = 20_000, 400
"""Tenants that wait with one job each, and the claims that are measured."""
READ_TENANTS = 125
"""Tenants whose queues are just few enough that each claim reads all of them."""
_LOGGED_US = 100
"""Every claim here takes longer. Most commands inside a script are shorter, and are not logged."""

Figures = dict[str, float]
_MAX_CLAIMS = 100_000


class Stream:
    """The queues of some tenants in their own namespace, and one worker that claims from them."""

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
        self._claims.lease.acquire()

    def add(
        self,
        counts: Sequence[int],
        tenants: int,
        *,
        steps_in_header: bool = True,
        model: str | None = None,
    ) -> None:
        """Add one job for each step count, with the tenants in turn.

        The id of a job contains its step count. With `steps_in_header` its message does, too.
        """
        queues = [queue_name(self._namespace, model, None, None, f"t{n}") for n in range(tenants)]
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
                    steps=steps if steps_in_header else None,
                )
                pipe.lpush(list_key(queue, PRIORITY), message)
            pipe.execute()

    def claim_times(self, capacity: int, claims: int) -> Figures:
        """Claim `claims` batches. Return how long a claim holds Redis: the mean, the 99th
        percentile and the longest, in ms of wall time; and its mean CPU time in ms.

        On a busy machine the wall times contain what other processes took meanwhile.
        """
        self._client.config_set("slowlog-max-len", 10 * claims)
        self._client.config_set("slowlog-log-slower-than", _LOGGED_US)
        self._client.slowlog_reset()
        before = self._cpu_s()
        claimed = sum(len(self._claims.claim(self._groups, capacity)) for _ in range(claims))
        cpu_ms = 1e3 * (self._cpu_s() - before) / claims
        logged = self._client.slowlog_get(10 * claims)
        scripts = [entry for entry in logged if entry["command"].startswith(b"EVALSHA")]
        times = sorted(entry["duration"] / 1e3 for entry in scripts)
        return {
            "mean": sum(times) / len(times),
            "p99": times[math.ceil(0.99 * len(times)) - 1],
            "max": times[-1],
            "cpu": cpu_ms,
            "claimed": claimed,
        }

    def claim_all(self, capacity: int, jobs: int) -> tuple[list[list[int]], float]:
        """Claim all of so many messages. Return each batch's step counts and the server's CPU ms
        per claim. A claim looks at a bounded number of queues, so it may find none."""
        before, left = self._cpu_s(), jobs
        batches: list[list[int]] = []
        while left and len(batches) < _MAX_CLAIMS:
            claimed = self._claims.claim(self._groups, capacity)
            ids = [json.loads(each.message)["headers"]["id"] for each in claimed]
            batches.append([int(job_id.partition("-")[2]) for job_id in ids])
            left -= len(claimed)
        assert not left, f"{left} of {jobs} messages were not claimed"
        cost = 1e3 * (self._cpu_s() - before) / len(batches)
        return [batch for batch in batches if batch], cost

    def _cpu_s(self) -> float:
        reported = self._client.info("cpu")
        return float(reported["used_cpu_user"]) + float(reported["used_cpu_sys"])


def slot_steps(server: LocalRedisServer) -> Figures:
    """Measure the slot-steps that are run, divided by those needed, without and with affinity."""
    figures: Figures = {}
    rng = random.Random(1)
    counts = [rng.randint(MIN_STEPS, MAX_STEPS) for _ in range(JOBS)]
    cases = [(capacity, tenants) for capacity, some in TENANTS.items() for tenants in some]
    for (capacity, tenants), (kind, steps_in_header) in product(cases, KINDS.items()):
        case = f"{kind}_{capacity}_from_{tenants}_tenants"
        stream = Stream(server, case)
        stream.add(counts, tenants, steps_in_header=steps_in_header)
        batches, cost = stream.claim_all(capacity, len(counts))
        run = sum(max(batch) * len(batch) for batch in batches)
        figures[f"run_by_wanted_{case}"] = run / sum(counts)
        figures[f"claim_ms_{case}"] = cost
    return figures


def many_tenants(server: LocalRedisServer) -> Figures:
    """Measure a claim while 1,000 tenants have waiting jobs, and later with 8 tenants."""
    stream = Stream(server, "many")
    counts = [20] * 2 * MANY_TENANTS
    stream.add(counts, MANY_TENANTS)
    _, busy = stream.claim_all(MANY_TENANTS_CAPACITY, len(counts))
    stream.add(counts, 8)
    _, after = stream.claim_all(MANY_TENANTS_CAPACITY, len(counts))
    return {"claim_ms_1000_tenants": busy, "claim_ms_8_tenants_after_them": after}


def invented_tenants(server: LocalRedisServer) -> Figures:
    """Measure claims while 20,000 tenants wait, of models that are served and others, and while
    125 wait."""
    figures: Figures = {}
    for case, tenants, model in (
        ("20000_tenants", INVENTED_TENANTS, None),
        ("20000_tenants_unserved", INVENTED_TENANTS, "nobodys"),
        ("125_tenants", READ_TENANTS, None),
    ):
        stream = Stream(server, case.replace("_", "-"))
        stream.add([20] * INVENTED_TENANTS, tenants, model=model)
        times = stream.claim_times(MANY_TENANTS_CAPACITY, INVENTED_CLAIMS)
        figures |= {f"claim_ms_{case}_{name}": value for name, value in times.items()}
    return figures


def main() -> None:
    parser_of(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name, LocalRedisServer(Path(name)) as server:
        figures = slot_steps(server) | many_tenants(server) | invented_tenants(server)
    for figure, value in figures.items():
        print(f"{figure:50} {value:8.3f}")
    print_json("claims", {figure: round(value, 3) for figure, value in figures.items()})


if __name__ == "__main__":
    main()
