"""Read how a fleet is: its workers, its queues, and what else waits in Redis."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from imagefleet.shared.jobs.model import Model
from imagefleet.shared.jobs.queues import PRIORITY_STEPS, list_key, queue_of_compile_key, tenant_of
from imagefleet.shared.jobs.redis_keys import (
    claims_key,
    dead_letters_key,
    delayed_key,
    job_ends_key,
    job_key,
    known_queues_key,
    outbox_given_up_key,
    outbox_key,
)
from imagefleet.shared.jobs.worker_status import WorkerRegistry, WorkerStatus
from imagefleet.shared.redis_client.scripts import load_script

if TYPE_CHECKING:
    from redis import Redis

_LISTS_PER_ROUND_TRIP: Final = 500
"""Queues per round trip."""
_MAX_HEADS: Final = 8_192
"""Lists whose oldest message is looked at."""
_HEADS_AT_ONCE: Final = 256
"""Those of them in one call of the script, which holds up the other clients."""
_BULK: Final = "bulk."


class QueueStatus(Model):
    """What waits for one model and shape, of all tenants and priorities."""

    model: str
    """`default` for jobs that name none."""
    shape: str
    """`native` for jobs that name none."""
    datasets: bool
    """Whether it holds shards of datasets. Else it holds jobs."""
    waiting: int
    """Messages in Redis that no worker has claimed."""
    tenants: int
    """Tenants with a waiting message, jobs without a tenant counted as one."""
    oldest_s: float | None
    """Seconds since the submission of the oldest job at the head of a list. None: unknown."""


class FleetStatus(Model):
    """How a fleet is at one moment."""

    workers: tuple[WorkerStatus, ...]
    queues: tuple[QueueStatus, ...]
    """Queues in which something waits, by model and shape."""
    waiting: int
    """Messages in all queues."""
    in_flight: int
    """Messages that workers hold. Together with `waiting` this is the work of the fleet."""
    delayed: int
    """Messages that return to their queue later: retries, and messages of a newer release."""
    dead_letters: int
    callbacks: int
    """Callbacks that wait to be delivered."""
    callbacks_given_up: int
    job_ends: dict[str, int]
    """Jobs that ended since the namespace was made: by state, and failed ones as `failed:code`. A
    job that was redriven ends again. Ends in workers of release 0.1.0 are not counted."""


class _List(NamedTuple):
    """One Redis list that is not empty."""

    queue: str
    key: str
    length: int


class FleetReader:
    """Reads the status of one namespace."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._namespace = namespace
        self.workers: Final = WorkerRegistry(client, namespace)
        self._oldest_message = load_script(client, __package__, "oldest_message")

    def read(self) -> FleetStatus:
        """Return the status now. The parts are read one after the other, not as a snapshot."""
        workers = self.workers.statuses()
        lists = list(self._waiting_lists())
        ends = cast(dict[str, str], self._redis.hgetall(job_ends_key(self._namespace)))
        with self._redis.pipeline(transaction=False) as pipe:
            for key in (delayed_key, dead_letters_key, outbox_key, outbox_given_up_key):
                pipe.zcard(key(self._namespace))
            for worker in workers:
                pipe.hlen(claims_key(self._namespace, worker.worker))
            delayed, dead_letters, callbacks, given_up, *claims = cast(list[int], pipe.execute())
        return FleetStatus(
            workers=tuple(workers),
            queues=tuple(self._queues(lists)),
            waiting=sum(each.length for each in lists),
            in_flight=sum(claims),
            delayed=delayed,
            dead_letters=dead_letters,
            callbacks=callbacks,
            callbacks_given_up=given_up,
            job_ends={name: int(count) for name, count in ends.items() if count.isdecimal()},
        )

    def _waiting_lists(self) -> Iterator[_List]:
        known = cast(set[str], self._redis.smembers(known_queues_key(self._namespace)))
        keys = [
            (queue, list_key(queue, step)) for queue in sorted(known) for step in PRIORITY_STEPS
        ]
        for at in range(0, len(keys), _LISTS_PER_ROUND_TRIP):
            part = keys[at : at + _LISTS_PER_ROUND_TRIP]
            with self._redis.pipeline(transaction=False) as pipe:
                for _, key in part:
                    pipe.llen(key)
                lengths: list[Any] = pipe.execute(raise_on_error=False)
            for (queue, key), length in zip(part, lengths, strict=True):
                if isinstance(length, int) and length:  # a key of another type holds no jobs
                    yield _List(queue, key, length)

    def _queues(self, lists: Sequence[_List]) -> Iterator[QueueStatus]:
        ages: dict[str, float | None] = {}
        for at in range(0, min(len(lists), _MAX_HEADS), _HEADS_AT_ONCE):
            ages |= self._ages([each.key for each in lists[at : at + _HEADS_AT_ONCE]])
        by_name: defaultdict[str, list[_List]] = defaultdict(list)
        for each in lists:
            by_name[queue_of_compile_key(each.queue)].append(each)
        for name, members in sorted(by_name.items()):
            compile_key = name.removeprefix(f"{self._namespace}.")
            model, _, shape = compile_key.removeprefix(_BULK).rpartition(".")
            known = [age for each in members if (age := ages.get(each.key)) is not None]
            yield QueueStatus(
                model=model,
                shape=shape,
                datasets=compile_key.startswith(_BULK),
                waiting=sum(each.length for each in members),
                tenants=len({tenant_of(each.queue) for each in members}),
                oldest_s=max(known, default=None),
            )

    def _ages(self, keys: Sequence[str]) -> dict[str, float | None]:
        if not keys:
            return {}
        times = self._oldest_message(keys=keys, args=[job_key(self._namespace, "")])
        seconds, microseconds = self._redis.time()
        now = seconds + microseconds / 1e6
        return {
            key: max(0.0, now - float(at)) if at else None
            for key, at in zip(keys, cast(list[str], times), strict=True)
        }
