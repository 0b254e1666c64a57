"""Read how a fleet is: its workers, its queues, and what else waits in Redis."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from pydantic import Field

from imagefleet.shared.jobs.host_failures import failure_keys, sum_failures
from imagefleet.shared.jobs.membership import HostDifference, differing_hosts
from imagefleet.shared.jobs.model import Model, parse_count
from imagefleet.shared.jobs.queues import PRIORITY_STEPS, list_key, queue_of_compile_key, tenant_of
from imagefleet.shared.jobs.redis_keys import (
    claims_key,
    dead_letter_totals_key,
    dead_letters_key,
    delayed_key,
    job_ends_key,
    job_key,
    known_queues_key,
    outbox_given_up_key,
    outbox_key,
)
from imagefleet.shared.jobs.worker_status import WorkerRegistry, WorkerStatus
from imagefleet.shared.redis_client.each_lane import ask_at_once
from imagefleet.shared.redis_client.lanes import Lane, Lanes
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_ignoring_wrong_types

_LISTS_PER_ROUND_TRIP: Final = 500
"""Queues per round trip."""
_MAX_HEADS: Final = 8_192
"""Lists whose oldest message is looked at."""
_HEADS_AT_ONCE: Final = 256
"""Those of them in one call of the script, which holds up the other clients."""
_BULK: Final = "bulk."
_ANSWER_S: Final = 10.0
"""Seconds that all lanes together have for an answer. It is long, so that a far server is read."""
_OLDEST: Final = "oldest_message"


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
    """It counts the tenants with a waiting message; jobs without a tenant count as one."""
    oldest_s: float | None
    """It counts the seconds since the submission of the oldest job at the head of a list. None:
    unknown."""


class FleetStatus(Model):
    """How a fleet is at one moment."""

    workers: tuple[WorkerStatus, ...]
    differences: tuple[HostDifference, ...] = ()
    """What differs between workers that should have it in common."""
    queues: tuple[QueueStatus, ...]
    """Queues in which something waits, by model and shape."""
    waiting: int
    """It counts the messages in all queues."""
    in_flight: int
    """Messages that workers hold. Together with `waiting` this is the work of the fleet."""
    in_flight_shards: int
    """Those of them that are shards of datasets, as of the workers' latest heartbeats. Workers of
    older releases do not say it."""
    delayed: int
    """Messages that return to their queue later: retries, and messages of a newer release."""
    dead_letters: int
    """Those that are kept."""
    dead_letters_dropped: int
    """Those that were dropped for newer ones since the namespace was made."""
    callbacks: int
    """Callbacks that wait to be delivered."""
    callbacks_given_up: int
    job_ends: dict[str, int]
    """Jobs that ended since the namespace was made: by state, and failed ones as `failed:code`. A
    job that was redriven ends again. Ends in workers of release 0.1.0 are not counted."""
    failures: dict[str, dict[str, int]] = Field(default_factory=dict)
    """It counts the attempts at jobs that failed in the last hour, by host and error code. A job
    that is retried, and one that fails, count. Those in workers of release 0.1.0 do not."""
    lanes_down: tuple[int, ...] = ()
    """Lanes of a cluster that did not answer. They count as they did when they were read last."""
    lanes_unknown: tuple[int, ...] = ()
    """Those of them that this process has never read. They do not count."""


class _List(NamedTuple):
    """One Redis list that is not empty."""

    queue: str
    key: str
    length: int


class FleetReader:
    """Reads the status of one fleet, in all its lanes. Threads may share it."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.workers: Final = WorkerRegistry(lanes.first.client, lanes.first.namespace)
        self._oldest_message = load_script(lanes.first.client, __package__, _OLDEST)
        self._latest: dict[int, _LanePart] = {}
        """By lane: what it answered last."""

    def read(self, within_s: float = _ANSWER_S) -> FleetStatus:
        """Return the status now. The parts are read one after the other, not as a snapshot.

        Args:
            within_s: one of several lanes that has not answered by then counts as it did last.

        Raises:
            redis.RedisError: the first lane does not answer.
        """
        workers = self.workers.statuses()
        names = [each.worker for each in workers]
        asks = {lane.number: partial(self._read_lane, lane, names) for lane in self._lanes}
        answers = ask_at_once(asks, len(self._lanes), within_s, "it counts as it did last")
        self._latest = {**self._latest, **answers}
        parts = [part for _, part in sorted(self._latest.items())]
        claims = [sum(part.sizes.claims.get(name, 0) for part in parts) for name in names]
        return FleetStatus(
            workers=tuple(
                worker.model_copy(update={"claims": held})
                for held, worker in zip(claims, workers, strict=True)
            ),
            differences=tuple(differing_hosts(workers)),
            queues=tuple(_queues(parts)),
            waiting=sum(each.length for part in parts for each in part.lists),
            in_flight=sum(claims),
            in_flight_shards=sum(
                min(held, max(0, worker.shards))
                for held, worker in zip(claims, workers, strict=True)
            ),
            delayed=sum(part.sizes.delayed for part in parts),
            dead_letters=sum(part.sizes.dead_letters for part in parts),
            dead_letters_dropped=sum(part.sizes.dropped for part in parts),
            callbacks=sum(part.sizes.callbacks for part in parts),
            callbacks_given_up=sum(part.sizes.given_up for part in parts),
            job_ends=_sum_counts(part.sizes.job_ends for part in parts),
            failures=sum_failures(counts for part in parts for counts in part.failures),
            lanes_down=tuple(sorted(asks.keys() - answers.keys())),
            lanes_unknown=tuple(sorted(asks.keys() - self._latest.keys())),
        )

    def _read_lane(self, lane: Lane, workers: Sequence[str]) -> "_LanePart":
        lists = list(_waiting_lists(lane))
        heads = [each.key for each in lists[: _MAX_HEADS // len(self._lanes)]]
        return _LanePart(
            namespace=lane.namespace,
            lists=lists,
            ages=self._ages(lane, heads),
            failures=_failures(lane),
            sizes=_Sizes.read(lane, workers),
        )

    def _ages(self, lane: Lane, keys: Sequence[str]) -> dict[str, float | None]:
        """Return the age of the oldest job of each list, by the key of the list."""
        ages: dict[str, float | None] = {}
        for at in range(0, len(keys), _HEADS_AT_ONCE):
            part = keys[at : at + _HEADS_AT_ONCE]
            times = self._oldest_message(
                keys=part, args=[job_key(lane.namespace, "")], client=lane.client
            )
            seconds, microseconds = lane.client.time()
            now = seconds + microseconds / 1e6
            ages |= {
                key: _age(text, now) for key, text in zip(part, cast(list[str], times), strict=True)
            }
        return ages


class _Sizes(NamedTuple):
    """What one lane holds, beside its queues."""

    job_ends: dict[str, int]
    delayed: int
    dead_letters: int
    callbacks: int
    given_up: int
    dropped: int
    claims: dict[str, int]
    """Messages that each worker holds."""

    @classmethod
    def read(cls, lane: Lane, workers: Sequence[str]) -> "_Sizes":
        with lane.client.pipeline(transaction=False) as pipe:
            pipe.hgetall(job_ends_key(lane.namespace))
            for key in (delayed_key, dead_letters_key, outbox_key, outbox_given_up_key):
                pipe.zcard(key(lane.namespace))
            pipe.hget(dead_letter_totals_key(lane.namespace), "dropped")
            for worker in workers:
                pipe.hlen(claims_key(lane.namespace, worker))
            ends, *sizes, dropped = (answers := read_ignoring_wrong_types(pipe))[:6]
        job_ends = {
            name: number
            for name, text in (ends or {}).items()
            if (number := _count(text)) is not None
        }
        delayed, dead_letters, callbacks, given_up = (size or 0 for size in sizes)
        return cls(
            job_ends=job_ends,
            delayed=delayed,
            dead_letters=dead_letters,
            callbacks=callbacks,
            given_up=given_up,
            dropped=_count(dropped) or 0,
            claims={name: size or 0 for name, size in zip(workers, answers[6:], strict=True)},
        )


class _LanePart(NamedTuple):
    """What one lane has answered."""

    namespace: str
    lists: Sequence[_List]
    ages: Mapping[str, float | None]  # of the oldest job of each list, by the key of the list
    failures: list[dict[str, str] | None]
    """The failed attempts of the last hour, as `sum_failures` takes them."""
    sizes: _Sizes


def _queues(parts: Sequence[_LanePart]) -> Iterator[QueueStatus]:
    """Yield what waits for each model and shape, in all lanes together."""
    by_key: defaultdict[str, list[_List]] = defaultdict(list)
    ages: dict[str, float | None] = {}
    for part in parts:
        ages |= part.ages
        for each in part.lists:
            name = queue_of_compile_key(each.queue)
            by_key[name.removeprefix(f"{part.namespace}.")].append(each)
    for compile_key, members in sorted(by_key.items()):
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


def _failures(lane: Lane) -> list[dict[str, str] | None]:
    """Return the failed attempts of the last hour, as `sum_failures` takes them."""
    now, _ = lane.client.time()
    with lane.client.pipeline(transaction=False) as pipe:
        for key in failure_keys(lane.namespace, now):
            pipe.hgetall(key)
        return read_ignoring_wrong_types(pipe)


def _waiting_lists(lane: Lane) -> Iterator[_List]:
    with lane.client.pipeline(transaction=False) as pipe:
        pipe.smembers(known_queues_key(lane.namespace))
        [known] = read_ignoring_wrong_types(pipe)
    keys = [
        (queue, list_key(queue, step)) for queue in sorted(known or ()) for step in PRIORITY_STEPS
    ]
    for at in range(0, len(keys), _LISTS_PER_ROUND_TRIP):
        part = keys[at : at + _LISTS_PER_ROUND_TRIP]
        with lane.client.pipeline(transaction=False) as pipe:
            for _, key in part:
                pipe.llen(key)
            lengths: list[Any] = pipe.execute(raise_on_error=False)
        for (queue, key), length in zip(part, lengths, strict=True):
            if isinstance(length, int) and length:  # a key of another type holds no jobs
                yield _List(queue, key, length)


def _sum_counts(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for counts in parts:
        total.update(counts)
    return dict(total)


def _age(submitted_at: str, now: float) -> float | None:
    """Return the seconds since then; None if it is no time, as in a damaged record."""
    try:
        at = float(submitted_at)
    except ValueError:
        return None
    return max(0.0, now - at) if math.isfinite(at) and at >= 0 else None


def _count(text: str | None) -> int | None:
    """Return a count that Redis keeps; None if there is none, or it is damaged."""
    return None if text is None else parse_count(text)
