"""Say what an error of this host means for a shard that it cannot make: the rows are not the cause.

The store is unavailable, or this host lacks space, rights or a library.
"""

import logging

from imagefleet.shared.errors import (
    ImagefleetError,
    StorageDenied,
    StorageUnavailable,
    WorkerError,
)

log = logging.getLogger(__name__)


def as_host_error(error: Exception, shard: str) -> ImagefleetError:
    """Return an error as one of the tree. Log the traceback of an unexpected one."""
    if isinstance(error, ImagefleetError):  # StorageUnavailable is an OSError, too
        return error
    if isinstance(error, OSError):  # the temporary folder is full
        return StorageDenied(str(error))
    log.exception("shard %s failed with an unexpected error", shard)
    return WorkerError(f"{type(error).__name__}: {error}")


def may_pass(error: ImagefleetError) -> bool:
    """Return whether a later attempt of this host may succeed, however many there were."""
    return error.retryable and not isinstance(error, WorkerError)


def is_of_store(error: Exception) -> bool:
    """Return whether the store of the dataset has failed."""
    return isinstance(error, StorageDenied | StorageUnavailable)
