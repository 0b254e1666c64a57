"""Delete the images of jobs whose `keep` is over, in a thread of its own.

Input: the entries of `ImageExpiry`. Output: a store without what lies below `jobs/<id>/`. Datasets
and the images that jobs start from lie elsewhere and stay. Deleting is idempotent: if a worker dies
after it has claimed an entry, the entry comes due again.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from random import uniform
from typing import Final

import redis

from imagefleet.shared.errors import ImagefleetError, InvalidRequest
from imagefleet.shared.jobs.image_expiry import ImageExpiry
from imagefleet.shared.jobs.model import check_job_id
from imagefleet.shared.redis_client.write_errors import describe_failure
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.job_keys import job_folder
from imagefleet.worker.process.log_format import log_fields

log = logging.getLogger(__name__)

_MIN_PAUSE_S: Final = 5.0
_MAX_PAUSE_S: Final = 60.0
_PAUSE_PER_WORKER_S: Final = 2.5
"""Mean seconds between two looks at the entries, for each worker of the fleet. A look costs Redis
one short script, and one look of any worker finds what is due."""
_PAUSE_AFTER_FAILURE_S: Final = 60.0
_MAX_FAILURES: Final = 3
"""Failures in a row after which the store, and not one job, is taken for the reason."""


def sweep_pause_s(workers: int, lanes: int = 1) -> float:
    """Return the mean pause between two looks of one worker into one of the lanes. In a large fleet
    it looks into all of them as often as into one."""
    return min(max(_MIN_PAUSE_S, workers * _PAUSE_PER_WORKER_S), _MAX_PAUSE_S * lanes)


class ImageSweeper:
    """The sweeper deletes expired images from `start` to `stop`."""

    def __init__(
        self,
        expiry: ImageExpiry,
        store: ObjectStore,
        count_workers: Callable[[], int] = lambda: 1,
        lanes: int = 1,
    ) -> None:
        """
        Args:
            count_workers: returns how many workers the fleet has; they share the looks.
            lanes: how many lanes the fleet has. The entries are of one of them.
        """
        self._count_workers = count_workers
        self._lanes = lanes
        self._expiry = expiry
        self._store = store
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="image-sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Delete the images of no further job."""
        self._stopped.set()

    def sweep(self) -> tuple[int, int]:
        """Delete the images of all jobs that are due. Return how many jobs, and how many failed.

        It ends after three failures in a row. The images that cannot be deleted are due again ten
        minutes later.
        """
        deleted = failed = in_a_row = 0
        while in_a_row < _MAX_FAILURES and not self._stopped.is_set():
            claimed = self._expiry.claim()
            if claimed is None:
                break
            try:
                folder = job_folder(check_job_id(claimed.job_id))
            except InvalidRequest as error:  # only another program can have written the entry
                log.warning("removed an entry of expiring images that names no job: %s", error)
                self._expiry.forget(claimed)
                continue
            try:
                self._store.delete_below(folder, partial(self._expiry.is_claimed, claimed))
            except ImagefleetError as error:
                failed, in_a_row = failed + 1, in_a_row + 1
                with log_fields(job_id=claimed.job_id):
                    log.warning("cannot delete the images of job %s: %s", claimed.job_id, error)
            else:
                in_a_row = 0
                deleted += self._expiry.finish(claimed)
        return deleted, failed

    def _loop(self) -> None:
        pause_s = _MIN_PAUSE_S
        while not self._stopped.wait(pause_s * uniform(0.5, 1.5)):
            try:
                pause_s = sweep_pause_s(self._count_workers(), self._lanes)
                deleted, failed = self.sweep()
                if deleted:
                    log.info("deleted the images of jobs whose time is over: %d", deleted)
                if failed:
                    pause_s = _PAUSE_AFTER_FAILURE_S
            except redis.RedisError as error:
                log.warning("no expired images are deleted now: Redis %s", describe_failure(error))
            except Exception:  # the worker can still generate, and other workers delete too
                log.exception("the deletion of images failed")
                pause_s = _PAUSE_AFTER_FAILURE_S
