"""Leave a shard whose format this host cannot write to workers that can, before it is made."""

import logging

from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.errors import ConfigurationError, LeaseLost
from imagefleet.shared.jobs.worker_status import WorkerState
from imagefleet.worker.bulk.shard_context import ShardContext
from imagefleet.worker.bulk.shard_formats import require_format

log = logging.getLogger(__name__)


def require_writable(context: ShardContext, file_format: BulkFormat) -> None:
    """Require that this host can write a format.

    Raises:
        LeaseLost: it cannot, and another living worker can. This one claims no shard for a while.
        ConfigurationError: it cannot, and no other worker says that it can.
    """
    try:
        require_format(file_format)
    except ConfigurationError as error:
        if not _another_writes(context, file_format):
            raise
        context.backlog.back_off()
        log.warning("a shard is left to workers that can write it: %s", error)
        raise LeaseLost(f"the shard is left to other workers: {error}") from error


def _another_writes(context: ShardContext, file_format: BulkFormat) -> bool:
    return any(
        each.state is WorkerState.READY
        and each.worker != context.claims.worker
        and each.model == context.engine.info.name
        and file_format in (each.shard_formats or ())
        for each in context.read_workers()
    )
