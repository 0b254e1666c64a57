"""Leave a shard to workers that hold the add-ons of its plan.

Input: a claimed message and the names of add-ons. Output: the message in another queue. This module
does not change the shard's record.
"""

import logging
from collections.abc import Collection

import redis

from imagefleet.shared.jobs.queues import list_for_add_ons
from imagefleet.worker.bulk.shard_context import ShardContext

log = logging.getLogger(__name__)


def leave_to_holders(context: ShardContext, tag: str, add_ons: Collection[str]) -> None:
    """Move the message of a shard to the queue that only workers with these add-ons serve.

    If that is the queue it came from, or Redis fails, it is requeued, and this worker claims no
    shard for a while.
    """
    try:
        claimed = context.claims.find(tag)
        target = "" if claimed is None else list_for_add_ons(claimed[0], add_ons)
        if claimed is not None and target != claimed[0]:
            context.claims.move(tag, target)
            log.warning(
                "this worker lacks add-ons of a shard; moved its message to queue %s", target
            )
            return
    except redis.RedisError as error:
        log.warning("a shard is requeued, because Redis failed: %s", error)
    context.backlog.back_off()
    context.claims.requeue(tag)
