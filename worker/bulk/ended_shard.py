"""Do what is left to do in the destination when a shard, or its run, has ended.

Input: an ended shard. Output: its checkpoints are deleted, or the summary of its run is written
and the end of the run reported.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.bulk.summary import Licenses
from imagefleet.shared.errors import InvalidRequest, PlanDamaged, StorageDenied
from imagefleet.shared.storage import ObjectStore
from imagefleet.worker.bulk.shard_checkpoints import delete_checkpoints

log = logging.getLogger(__name__)

T = TypeVar("T")


class Retry(Protocol):
    """Calls a function until the store is available. The text says in the log what it does."""

    def __call__(self, act: Callable[[], T], what: str, /) -> T: ...


class EndedShard:
    """Tidies up after one shard."""

    def __init__(
        self,
        name: str,
        summing_up: Callable[[], AbstractContextManager[object]],
        open_store: Callable[[], ObjectStore],
        read_plan: Callable[[], Plan],
        retry: Retry,
        licenses: Licenses,
    ) -> None:
        """Store the arguments. Nothing is opened or read before something is to be done.

        Args:
            summing_up: within its block the summary is written; then it reports the end of the run.
            open_store: returns the store of the dataset, or raises InvalidRequest.
            read_plan: returns the plan, or raises PlanDamaged.
            retry: repeats both while the store is unavailable.
            licenses: has the licence of the model of this worker.
        """
        self.name: Final = name
        self._summing_up = summing_up
        self._open_store, self._read_plan, self._retry = open_store, read_plan, retry
        self._licenses = licenses

    def delete_checkpoints(self) -> None:
        """Delete the checkpoints of the shard, which is finished."""
        self._tidy(
            lambda _: delete_checkpoints(self._open_store(), self.name), "deleting its checkpoints"
        )

    def sum_up(self, write: Callable[[ObjectStore, Plan, Licenses], object]) -> None:
        """Let `write` write the summary of the run, which has succeeded, and report its end."""
        with self._summing_up():
            self._tidy(
                lambda plan: write(self._open_store(), plan, self._licenses), "writing the summary"
            )

    def _tidy(self, act: Callable[[Plan], object], what: str) -> None:
        """Do what is left to do, if the plan is still there.

        If a right is missing, or the plan is gone, trying again does not help: it would bring the
        message back for ever.
        """
        try:
            self._retry(lambda: act(self._read_plan()), what)
        except (InvalidRequest, PlanDamaged, StorageDenied) as error:
            log.error(
                "shard %s has ended, but its last files cannot be changed: %s", self.name, error
            )
