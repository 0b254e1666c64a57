"""Which queues a worker serves, and which of them hold jobs that may share a batch.

Input: what the worker's model announces. Output: groups of queue names. Nothing here connects to
Redis.
"""

from collections.abc import Callable, Sequence

from imagefleet.shared.bulk.shard_message import bulk_queue
from imagefleet.shared.jobs.queues import DEFAULT_MODEL, queue_name, queue_of_compile_key
from imagefleet.worker.engine.contract.interface import ModelInfo
from imagefleet.worker.queues.claim_types import QueueGroup


def queue_groups(
    queues: Sequence[str] | None, info: ModelInfo, namespace: str, *, default: bool = True
) -> list[QueueGroup]:
    """Group `queues` by compile key; None stands for all queues of this model.

    A queue whose compile key is unknown makes a group of its own.

    Args:
        default: whether the jobs that name no model are among those of this model.
    """
    models = (None, info.name) if default else (info.name,)
    jobs = _shapes_by_queue(info, models, namespace, queue_name)
    shards = _shapes_by_queue(info, models, namespace, bulk_queue)
    grouped: dict[tuple[str, bool], list[str]] = {}
    for queue in [*jobs, *shards] if queues is None else queues:
        plain = queue_of_compile_key(queue)
        name = jobs.get(plain) or shards.get(plain) or queue
        grouped.setdefault((name, plain in shards), []).append(queue)
    return [
        QueueGroup(name=name, queues=tuple(members), bulk=bulk, add_ons=tuple(info.add_ons))
        for (name, bulk), members in grouped.items()
    ]


def holds_default_jobs(queues: Sequence[str] | None, namespace: str) -> bool:
    """Return whether jobs that name no model are in `queues`; None stands for all of a model."""
    beginnings = tuple(
        make_name(namespace, DEFAULT_MODEL, None, None).rpartition(".")[0] + "."
        for make_name in (queue_name, bulk_queue)
    )
    return queues is None or any(queue.startswith(beginnings) for queue in queues)


def _shapes_by_queue(
    info: ModelInfo, models: Sequence[str | None], namespace: str, make_name: Callable[..., str]
) -> dict[str, str]:
    """Return the shape of each queue of `models`; `make_name` builds the queue names."""
    sizes = [((shape.height, shape.width), shape) for shape in info.shapes]
    native: tuple[None, None] = (None, None)
    return {
        make_name(namespace, model, *size): str(shape)
        for model in models
        for size, shape in [(native, info.shapes[0]), *sizes]
    }
