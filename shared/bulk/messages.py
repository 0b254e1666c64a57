"""What travels to the workers for a shard: a Celery message beside the jobs', on its own queues.

Goes in: a run and a shard. Comes out: a queue's list and what to put on it; and what such a message
says. Knows no store and sends nothing.
"""

from typing import Final

from imagefleet.shared.bulk.file_layout import shard_name
from imagefleet.shared.bulk.plan import ShardPlan
from imagefleet.shared.bulk.records import NewRun
from imagefleet.shared.errors import MessageRejected
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME, task_message
from imagefleet.shared.jobs.model import Model
from imagefleet.shared.jobs.queues import list_key, queue_name

MESSAGE_VERSION: Final = 1
ShardToSend = tuple[int, int, int | None, int | None]
"""A shard: number, samples, height and width in pixels, or None for the model's own."""


class ShardMessage(Model):
    """What the Celery message of a shard says."""

    version: int = MESSAGE_VERSION
    run: str
    shard: int
    destination: str
    """URL of the store."""


def shard_to_send(shard: ShardPlan) -> ShardToSend:
    return shard.number, shard.samples, shard.height, shard.width


def bulk_queue(namespace: str, model: str | None, height: int | None, width: int | None) -> str:
    """The queue of the shards of one compile key: `imagefleet.bulk.default.native`."""
    return queue_name(f"{namespace}.bulk", model, height, width)


def message_id(run: str, shard: int) -> str:
    """Celery's task id of a shard."""
    return f"{run}-{shard_name(shard)}"


def unpack_shard(kwargs: object) -> ShardMessage:
    """What a shard's message says. Raises MessageRejected."""
    if not isinstance(kwargs, dict):
        raise MessageRejected("message carries no keyword arguments")
    if kwargs.get("version") != MESSAGE_VERSION:
        raise MessageRejected(f"shard message of version {kwargs.get('version')!r}, not 1")
    try:
        return ShardMessage.model_validate(kwargs)
    except ValueError as error:
        raise MessageRejected(f"not the message of a shard: {error}") from None


def pack_shard(namespace: str, run: NewRun, shard: ShardToSend) -> tuple[str, str]:
    """The list that `shard` goes to, and its message."""
    number, samples, height, width = shard
    queue = bulk_queue(namespace, run.model, height, width)
    said = ShardMessage(run=run.id, shard=number, destination=run.destination)
    message = task_message(
        BULK_TASK_NAME,
        message_id(run.id, number),
        said.model_dump(),
        queue=queue,
        priority=run.priority,
        images=samples,
    )
    return list_key(queue, run.priority), message
