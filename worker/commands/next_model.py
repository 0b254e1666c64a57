"""Decide whether a worker with several models should switch, and to which one.

Input: what waits for each model. Output: a name or None. Nothing here starts or stops anything, or
reads a clock.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

from imagefleet.shared.jobs.fleet_status import QueueStatus
from imagefleet.shared.jobs.queues import DEFAULT_MODEL, NATIVE_SHAPE


@dataclass(frozen=True, kw_only=True)
class WaitingWork:
    """What waits in Redis for one model, of all shapes and tenants."""

    jobs: int = 0
    oldest_s: float = 0.0
    """It counts the seconds since the submission of the oldest job."""
    shards: int = 0
    """It counts the shards of datasets."""


@dataclass(frozen=True, kw_only=True)
class SwitchPolicy:
    """See the settings of the same names."""

    min_stay_s: float
    max_wait_s: float


NOTHING = WaitingWork()


class FirstSeen:
    """Remembers since when jobs without a known age wait for models that are not loaded.

    Messages of plain Celery have no record, and so no age, before a worker claims them.
    """

    def __init__(self) -> None:
        self._since: dict[Hashable, float] = {}

    def add_ages(
        self, queues: Iterable[QueueStatus], loaded: Collection[str], now: float
    ) -> list[QueueStatus]:
        """Return `queues`; where the age of waiting jobs is unknown, it is the time since they were
        first seen.

        Args:
            loaded: names of the model on the devices. Its jobs get no age: they are being made.
            now: seconds of a clock that never goes back.
        """
        before, self._since = self._since, {}
        found = []
        for queue in queues:
            if queue.oldest_s is None and not queue.datasets and queue.model not in loaded:
                key = (queue.model, queue.shape)
                self._since[key] = before.get(key, now)
                queue = queue.model_copy(update={"oldest_s": now - self._since[key]})
            found.append(queue)
        return found


def waiting_by_model(
    queues: Iterable[QueueStatus], default: str, shapes: Mapping[str, Collection[str]]
) -> dict[str, WaitingWork]:
    """Return what waits for this worker, by model.

    Args:
        default: the model of the jobs that name none.
        shapes: those that this worker makes, by model. Jobs with others are left to other workers.
    """
    found: dict[str, WaitingWork] = {}
    for queue in queues:
        name = default if queue.model == DEFAULT_MODEL else queue.model
        if queue.shape not in (NATIVE_SHAPE, *shapes.get(name, ())):
            continue
        before = found.get(name, NOTHING)
        found[name] = WaitingWork(
            jobs=before.jobs + (0 if queue.datasets else queue.waiting),
            oldest_s=max(before.oldest_s, 0.0 if queue.datasets else queue.oldest_s or 0.0),
            shards=before.shards + (queue.waiting if queue.datasets else 0),
        )
    return found


def next_model(
    current: str,
    others: Iterable[str],
    waiting: Mapping[str, WaitingWork],
    *,
    stayed_s: float,
    is_idle: bool,
    policy: SwitchPolicy,
) -> str | None:
    """Return the model to switch to, or None to stay.

    Jobs come before datasets. Among the other models with waiting jobs the one with the oldest is
    chosen. The worker switches to it if no job waits for its own model, or if that job is older
    than the oldest of its own by more than `max_wait_s`, or if it is idle, because it cannot make
    its own then: they may need a LoRA. To a model with shards alone it switches when it has nothing
    to do.

    Args:
        current: the model on the devices.
        others: those that this worker may load.
        stayed_s: seconds since the current model was ready.
        is_idle: whether the worker has no message in flight.
    """
    if stayed_s < policy.min_stay_s:
        return None
    own = waiting.get(current, NOTHING)
    work = {name: waiting.get(name, NOTHING) for name in others}
    with_jobs = [name for name, each in work.items() if each.jobs]
    if with_jobs:
        oldest = max(with_jobs, key=lambda name: work[name].oldest_s)
        lead_s = work[oldest].oldest_s - own.oldest_s
        return oldest if not own.jobs or is_idle or lead_s > policy.max_wait_s else None
    if own.jobs or own.shards or not is_idle:
        return None
    with_shards = [name for name, each in work.items() if each.shards]
    return max(with_shards, key=lambda name: work[name].shards, default=None)
