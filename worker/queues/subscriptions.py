"""Which queues a worker serves, and which of them hold jobs that may share a batch.

Goes in: what its model announces. Comes out: groups of queue names. Asks no Redis.
"""

from collections.abc import Callable, Sequence

from imagefleet.shared.bulk.messages import bulk_queue
from imagefleet.shared.jobs.queues import queue_name, without_tenant
from imagefleet.worker.engine.interface import ModelInfo
from imagefleet.worker.queues.claims import QueueGroup


def queue_groups(queues: Sequence[str] | None, info: ModelInfo, namespace: str) -> list[QueueGroup]:
    """`queues`, or all of this model's, sorted by compile key. A name we do not know is a group of
    its own."""
    jobs = _compile_keys(info, namespace, queue_name)
    shards = _compile_keys(info, namespace, bulk_queue)
    grouped: dict[tuple[str, bool], list[str]] = {}
    for queue in [*jobs, *shards] if queues is None else queues:
        plain = without_tenant(queue)
        name = jobs.get(plain) or shards.get(plain) or queue
        grouped.setdefault((name, plain in shards), []).append(queue)
    return [
        QueueGroup(name=name, queues=tuple(found), bulk=bulk)
        for (name, bulk), found in grouped.items()
    ]


def _compile_keys(info: ModelInfo, namespace: str, name: Callable[..., str]) -> dict[str, str]:
    """The queues of this model, as `name` calls them, and the shape of each."""
    sizes = [((shape.height, shape.width), shape) for shape in info.shapes]
    native: tuple[None, None] = (None, None)
    return {
        name(namespace, model, *size): str(shape)
        for model in (None, info.name)
        for size, shape in [(native, info.shapes[0]), *sizes]
    }
