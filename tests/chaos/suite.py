"""One run: servers, workers, producers, mischief, peace, audit.

Goes in: a `Plan`. Comes out: a `Ledger`. The order of things is that of `run`.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis

from imagefleet.shared.jobs.model import TERMINAL, State
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import open_store
from tests.chaos.fleet import Fleet, our_worker
from tests.chaos.ledger import (
    Ledger,
    audit_callbacks,
    audit_keys,
    audit_records,
    audit_tenants,
    end_of,
)
from tests.chaos.mailbox import Mailbox
from tests.chaos.mischief import Mischief
from tests.chaos.orders import SIZES, Order, draw
from tests.chaos.pictures import audit_pictures
from tests.chaos.processes import PUTS, Bucket, Producers

NAMESPACE: Final = "chaos"
_IMPORTS: Final = (
    "boto3",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "kombu.transport.redis",
    "imagefleet.shared.storage.s3",
    "imagefleet.worker.celery_app.bootsteps",
    "imagefleet.worker.cli",
    "imagefleet.worker.celery_app.tasks",
)
_LOOK_EVERY_S: Final = 1.0
_HURRY_EVERY_S: Final = 10.0
_CHUNK: Final = 500
_DRAIN_S: Final = "1"
"""Less than a picture may take to be stored: some are handed back."""
_LAST_DRAIN_S: Final = 60.0
"""Of those who end the run. Nothing is under way then, so only a hang takes so long, however busy
the machine is."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much, how long, and from which seed everything is drawn."""

    seed: int
    jobs: int = 5_200
    seconds: float = 480.0
    """Of mischief. Then everything left is finished in peace."""
    patience_s: float = 300.0
    """Then, with nothing more coming to an end for so long, whatever is open counts as lost."""
    workers: int = 4
    killers: int = 6
    lease_s: float = 3.0
    model: str = "fake:seconds=0.05,capacity=8"


def run(plan: Plan, folder: Path) -> Ledger:
    """Raises AssertionError if a server or a producer fails; the fleet's faults are counted."""
    began = time.monotonic()
    ledger = Ledger(title=f"{plan.jobs:,} jobs, {plan.seconds:.0f} s of chaos")
    with ExitStack() as stack:
        server = stack.enter_context(LocalRedisServer(folder / "redis"))
        bucket = stack.enter_context(Bucket(plan.seed, folder / "bucket.log"))
        mailbox = stack.enter_context(Mailbox(plan.seed))
        orders = draw(
            plan.seed,
            jobs=plan.jobs,
            seconds=0.9 * plan.seconds,
            killers=plan.killers,
            callback_url=mailbox.url,
        )
        environment = _environment(plan, server, bucket, mailbox)
        producers = stack.enter_context(Producers(orders, environment, folder))
        workers = folder / "workers"
        fleet = stack.enter_context(
            Fleet(workers, environment, size=plan.workers, main=our_worker, imports=_IMPORTS)
        )
        watch = Watch(server, [order.id for order in orders])
        mischief = Mischief(fleet, server, plan.seed, plan.lease_s)
        mischief.play(plan.seconds, watch.look)
        mailbox.calm = True
        fleet.thaw_all()
        fleet.relieve(_LAST_DRAIN_S)
        make_peace(plan, fleet, producers, watch)
        note_mischief(ledger, plan, mischief, fleet.started, bucket.faults())
        note_codes(ledger, fleet.stop())
        audit(ledger, orders, producers.accepted(), watch, bucket, mailbox)
    ledger.note("time", "all in all, seconds", round(time.monotonic() - began))
    return ledger


def audit(
    ledger: Ledger,
    orders: Sequence[Order],
    accepted: Sequence[str],
    watch: "Watch",
    bucket: Bucket,
    mailbox: Mailbox,
) -> None:
    found = watch.read_all()
    audit_records(ledger, orders, accepted, found, watch.first_ends)
    with _environ(bucket.environment):
        store = open_store(bucket.honest_url)
    audit_pictures(ledger, {order.id: order for order in orders}, found, store)
    audit_callbacks(ledger, orders, found, mailbox)
    audit_tenants(ledger, orders, found)
    failed = [job_id for job_id, status in found.items() if status.state is State.FAILED]
    audit_keys(ledger, watch.client, NAMESPACE, failed)


def make_peace(plan: Plan, fleet: Fleet, producers: Producers, watch: "Watch") -> None:
    """Let the producers and the fleet come to their end. Nothing is killed any more, but storage
    stays as it was."""
    left, changed_at, hurried_at = -1, time.monotonic(), -_HURRY_EVERY_S
    while time.monotonic() < changed_at + plan.patience_s:
        fleet.fill()
        watch.look()
        owed = watch.client.zcard(f"{NAMESPACE}:outbox")
        if left != len(watch.open) + owed:
            left, changed_at = len(watch.open) + owed, time.monotonic()
        if producers.done() and not watch.open:
            if time.monotonic() > hurried_at + _HURRY_EVERY_S:
                bring_callbacks_forward(watch.client)
                hurried_at = time.monotonic()
            if not fleet.leaving and nothing_under_way(watch.client, living=len(fleet.workers)):
                return
        time.sleep(0.1)


def bring_callbacks_forward(client: redis.Redis) -> None:
    """Their schedule is three days long; nobody wants to wait for it here."""
    owed = client.zrange(f"{NAMESPACE}:outbox", 0, -1)
    if owed:
        client.zadd(f"{NAMESPACE}:outbox", dict.fromkeys(owed, 0.0), xx=True)


def nothing_under_way(client: redis.Redis, living: int) -> bool:
    """Nor is anybody's death unnoticed: who was killed last still has a lease for a while, and it
    takes a living worker to clear that away."""
    names = ("outbox", "later", "deliveries", "queues")
    keys = [f"{NAMESPACE}:{name}" for name in names]
    claims = next(client.scan_iter(f"{NAMESPACE}:claims:*", count=10_000), None)
    leases = client.zcard(f"{NAMESPACE}:leases")
    return not client.exists(*keys) and claims is None and leases == living


class Watch:
    """Looks at the records from outside, and remembers each job's end as it was at first."""

    def __init__(self, server: LocalRedisServer, ids: Sequence[str]) -> None:
        self.client = connect(server.url)
        self.open = list(ids)
        self.first_ends: dict[str, str] = {}
        self._ids = list(ids)
        self._records = JobRecords(self.client, NAMESPACE, 3600)
        self._looked_at = 0.0

    def look(self) -> None:
        if time.monotonic() < self._looked_at + _LOOK_EVERY_S:
            return
        with suppress(redis.RedisError):
            states = zip(self.open, self._records.states(self.open), strict=True)
            ended = [job_id for job_id, state in states if state in TERMINAL]
            for status in self._records.read(ended):
                assert status is not None
                self.first_ends[status.id] = end_of(status)
            self.open = [job_id for job_id in self.open if job_id not in self.first_ends]
        self._looked_at = time.monotonic()

    def read_all(self) -> dict[str, JobStatus]:
        """Every record there is, whether anybody ordered it or not."""
        prefix = f"{NAMESPACE}:job:"
        ids = [key.removeprefix(prefix) for key in self.client.scan_iter(f"{prefix}*", count=1000)]
        found: dict[str, JobStatus] = {}
        for at in range(0, len(ids), _CHUNK):
            for status in self._records.read(ids[at : at + _CHUNK]):
                assert status is not None
                found[status.id] = status
        return found


def _environment(
    plan: Plan, server: LocalRedisServer, bucket: Bucket, mailbox: Mailbox
) -> dict[str, str]:
    return {
        **bucket.environment,
        "IMAGEFLEET_REDIS_URL": server.url,
        "IMAGEFLEET_NAMESPACE": NAMESPACE,
        "IMAGEFLEET_MODEL": plan.model,
        "IMAGEFLEET_SHAPES": ",".join(f"{height}x{width}" for height, width in SIZES),
        "IMAGEFLEET_STORAGE_URL": bucket.url,
        "IMAGEFLEET_LEASE_S": str(plan.lease_s),
        "IMAGEFLEET_DRAIN_S": _DRAIN_S,
        # Where a worker dies every two seconds, and Redis and storage with them, one job in five is
        # taken over, and of those one in three once more: with the default of 4 harmless prompts
        # would be given up.
        "IMAGEFLEET_MAX_DELIVERIES": "10",
        "IMAGEFLEET_WEBHOOK_SECRETS": mailbox.secret,
        "IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.1",
    }


def note_mischief(
    ledger: Ledger, plan: Plan, mischief: Mischief, started: int, faults: Mapping[str, int]
) -> None:
    section = "what was done to it"
    ledger.note(section, "seed", plan.seed)
    for deed, count in mischief.counts.items():
        ledger.note(section, deed, count)
    ledger.note(section, "workers started in all", started)
    ledger.note(section, "puts at S3", faults[PUTS])
    for what, count in sorted(faults.items()):
        if what != PUTS:
            ledger.note(section, f"of them {what}", count)


def note_codes(ledger: Ledger, codes: Sequence[int]) -> None:
    """SIGTERM itself ends a worker that had not come so far as to hear it."""
    unwell = [code for code in codes if code not in (0, -signal.SIGTERM)]
    ledger.never("what was done to it", "workers that did not end well at last", unwell)


@contextmanager
def _environ(more: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
