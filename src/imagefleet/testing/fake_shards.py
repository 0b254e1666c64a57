"""The datasets of a fake fleet: shards are made one by one, in the thread that asks for them.

Input: queued messages of shards. Output: the files of datasets and the records of their runs, all
made by the code of a real worker. Checkpoints after some seconds, several shards at a time and
the recovery of stalled runs are left out.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.bulk.shard_message import unpack_shard
from imagefleet.shared.errors import ImagefleetError, LeaseLost
from imagefleet.shared.jobs.celery_message import task_arguments
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.settings.settings import Settings
from imagefleet.worker.bulk.destinations import DestinationPolicy
from imagefleet.worker.bulk.make_shard import make_shard
from imagefleet.worker.bulk.shard_context import ShardContext
from imagefleet.worker.bulk.store_probe import StoreProbe
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.devices.slots import InitInput, Slot
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.queues.claim_types import Claimed, QueueGroup
from imagefleet.worker.queues.claims import Claims

if TYPE_CHECKING:
    from redis import Redis

_POLL_S: Final = 0.001
_CHECKPOINT_S: Final = 3600.0
_MAX_DELIVERIES: Final = 1
"""A host that fails makes a few attempts at once, and then the shard fails."""
_CLOSED: Final = "the fake fleet was closed"


class FakeShards:
    """Makes the shards of one fake fleet. One thread at a time may call `make_next`."""

    def __init__(
        self,
        redis: "Redis",
        settings: Settings,
        engine: FakeEngine,
        claims: Claims,
        groups: Sequence[QueueGroup],
        fetch_image: Callable[[JobRequest, Shape], tuple[InitInput, ...]],
    ) -> None:
        """Store the arguments. `groups` are the queues of shards."""
        self._redis = redis
        self._settings = settings
        self._engine = engine
        self._claims = claims
        self._groups = groups
        self._fetch_image = fetch_image
        self._backlog = RowBacklog(engine.capacity)
        self._stopping = threading.Event()

    def make_next(self, check: Callable[[str], None]) -> bool:
        """Make the shard whose turn it is. Return False if none is queued.

        Args:
            check: is called with the prompt of each image, and raises the error of its row.
        """
        claimed = self._claims.claim(self._groups, 1, max_messages=1)
        if not claimed:
            return False
        self._backlog.add_shard(claimed[0])
        with ThreadPoolExecutor(3, "fake-shard") as threads:
            made = threads.submit(self._make, self._context(threads), claimed[0])
            while not made.done():
                if batch := self._backlog.pop_slots(self._engine.capacity):
                    self._generate(batch, check)
                else:
                    wait([made], _POLL_S)
        made.result()
        return True

    def stop(self) -> None:
        """Requeue the shard that another thread makes."""
        self._stopping.set()
        self._backlog.close(LeaseLost(_CLOSED))

    def _context(self, threads: ThreadPoolExecutor) -> ShardContext:
        """Return what the worker's code needs. `threads` makes the shard, encodes and fetches."""
        return ShardContext(
            runs=RunRecords(self._redis, self._settings.namespace, self._settings.retention_s),
            claims=self._claims,
            backlog=self._backlog,
            engine=self._engine,
            encoders=threads,
            fetch_image=self._fetch_image,
            image_fetchers=threads,
            checkpoint_s=_CHECKPOINT_S,
            storage_retry_s=0.0,
            max_deliveries=_MAX_DELIVERIES,
            destinations=DestinationPolicy.parse(self._settings.storage_url, ()),
            store_probe=StoreProbe(self._backlog),
            read_workers=list,
        )

    def _make(self, context: ShardContext, claimed: Claimed) -> None:
        with suppress(LeaseLost):  # the shard is queued again
            make_shard(context, unpack_shard(task_arguments(claimed.message)), claimed.tag)

    def _generate(self, batch: Sequence[Slot], check: Callable[[str], None]) -> None:
        """Deliver the images of a batch, or abandon their rows."""
        for slot in batch:
            try:
                check(slot.spec.prompt)
            except ImagefleetError as error:
                slot.work.abandon(_of_row(error))
        wanted = [slot for slot in batch if not slot.work.ended]
        if not wanted:
            return
        running = self._engine.start_batch([slot.spec for slot in wanted], wanted[0].work.shape)
        for _ in running:
            if self._stopping.is_set():
                for slot in wanted:
                    slot.work.abandon(LeaseLost(_CLOSED))
                return
        for slot, image in zip(wanted, running.outputs(), strict=True):
            slot.work.deliver(slot.index, image)


def _of_row(error: ImagefleetError) -> ImagefleetError:
    """Return an error of this code that fails its row: an error of the store would requeue the
    shard."""
    kind: type[ImagefleetError] = type("RowError", (ImagefleetError,), {"code": error.code})
    return kind(str(error))
