"""Build and read the Celery messages that bring shards to workers. They have their own queues.

Input: a run and a shard. Output: the Redis list and the message for it, or the other way round.
This module uses no store and sends nothing.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from imagefleet.shared.bulk.file_layout import shard_name
from imagefleet.shared.bulk.plan import Plan, ShardPlan
from imagefleet.shared.bulk.records import NewRun
from imagefleet.shared.errors import MessageRejected
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME, task_message
from imagefleet.shared.jobs.message_arguments import check_all_known, wrong_version
from imagefleet.shared.jobs.model import Model
from imagefleet.shared.jobs.parameter_lookups import (
    NEWEST_ROWS_VERSION,
    PARAMETERS,
    ROW_PARAMETERS,
)
from imagefleet.shared.jobs.queues import list_key, queue_name

MESSAGE_VERSION: Final = NEWEST_ROWS_VERSION
"""The newest version of a message. A parameter of rows that workers of the version before could not
read raises it, by its `rows_since` in the table. Plans without such parameters are sent as version
1, so that workers of release 0.1.0 can make them."""


_APPENDED_SINCE: Final = 2
"""The oldest version whose readers know plans with appended rows."""
_MAX_SHARDS: Final = 10**9
ShardNumber = Annotated[int, Field(strict=True, ge=0, lt=_MAX_SHARDS)]
"""It is strict, because a Decimal in a message may take hours to become an int."""


class ShardToSend(NamedTuple):
    """What the message of a shard is made from."""

    number: int
    samples: int
    height: int | None = None
    """Pixels; None means the model's native size."""
    width: int | None = None
    version: int = 1
    """Version of the message."""
    add_ons: tuple[str, ...] = ()
    """Those of the plan. A worker that lacks one moves the message to the list of
    `list_for_add_ons`."""


class ShardMessage(Model):
    """The keyword arguments of a shard's Celery message."""

    version: int = 1
    run: str
    shard: ShardNumber
    destination: str
    """URL of the dataset's store."""


def shards_to_send(plan: Plan, shards: Iterable[ShardPlan]) -> Iterator[ShardToSend]:
    """Yield what to send for some shards of `plan`."""
    version, names = _version_of(plan), tuple(sorted(plan.add_ons))
    for shard in shards:
        yield ShardToSend(shard.number, shard.samples, shard.height, shard.width, version, names)


def _version_of(plan: Plan) -> int:
    """Return the oldest version whose readers make this plan correctly."""
    used = (PARAMETERS[name].rows_since or 1 for name in ROW_PARAMETERS if plan.uses(name))
    return max([*used, _APPENDED_SINCE if plan.appended else 1])


def bulk_queue(namespace: str, model: str | None, height: int | None, width: int | None) -> str:
    """Return the queue for shards of one compile key: `imagefleet.bulk.default.native`."""
    return queue_name(f"{namespace}.bulk", model, height, width)


def message_id(run: str, shard: int) -> str:
    """Return the Celery task id of a shard."""
    return f"{run}-{shard_name(shard)}"


def unpack_shard(kwargs: object) -> ShardMessage:
    """Return the content of a shard's message.

    Raises:
        NewerMessage: the message has a newer version, or an unknown field with a value. Only newer
            workers can read it.
        MessageRejected: it is not the message of a shard, or has another version.
    """
    if not isinstance(kwargs, dict):
        raise MessageRejected("the shard message has no keyword arguments")
    version = kwargs.get("version")
    if not isinstance(version, int) or not 1 <= version <= MESSAGE_VERSION:
        raise wrong_version("shard message", version, MESSAGE_VERSION)
    check_all_known(kwargs, ShardMessage.model_fields)
    try:
        return ShardMessage.model_validate(kwargs, extra="ignore")
    except ValueError as error:
        raise MessageRejected(f"the shard message has wrong fields: {error}") from None


def pack_shard(namespace: str, run: NewRun, shard: ShardToSend) -> tuple[str, str]:
    """Return the Redis list for `shard` and the message to push to it."""
    queue = bulk_queue(namespace, run.model, shard.height, shard.width)
    content = ShardMessage(
        version=shard.version, run=run.id, shard=shard.number, destination=run.destination
    )
    message = task_message(
        BULK_TASK_NAME,
        message_id(run.id, shard.number),
        content.model_dump(),
        queue=queue,
        priority=run.priority,
        images=shard.samples,
    )
    return list_key(queue, run.priority), message
