"""Choose how many images a shard has, if the user does not say it.

Input: the living workers, and the number of images. Output: the size. A run of few images has
smaller shards if several workers live, because one worker makes a whole shard.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from imagefleet.shared.jobs.parameter_types import MAX_IMAGES
from imagefleet.shared.jobs.worker_status import WorkerStatus

DEFAULT_SHARD_SIZE: Final = 1_000
_SHARDS_PER_WORKER: Final = 4
"""With so many, a worker that is slow or ends late keeps the others waiting for a quarter of its
work at most."""
_MIN_BATCHES: Final = 2
"""A worker holds three shards at a time, and wants four batches of rows ahead."""
_MAX_WAITING: Final = 50_000
"""So many planned images wait in memory for the size of their shards."""


@dataclass(frozen=True, kw_only=True)
class ShardSizing:
    """Sizes the shards of one run for the workers that live when it is planned."""

    workers: int = 0
    batch: int = 1
    """It counts the images of the largest full batch."""

    @classmethod
    def of(cls, workers: Sequence[WorkerStatus]) -> Self:
        return cls(workers=len(workers), batch=max((w.capacity for w in workers), default=1) or 1)

    @property
    def enough_images(self) -> int:
        """Return from how many images on the size is known before all are counted."""
        if self.workers < 2:
            return 0
        return min(_MAX_WAITING, self.workers * _SHARDS_PER_WORKER * DEFAULT_SHARD_SIZE)

    def size_if_enough(self) -> int:
        """Return the images per shard of a run with `enough_images` or more."""
        if self.workers < 2:
            return DEFAULT_SHARD_SIZE
        return max(MAX_IMAGES, min(DEFAULT_SHARD_SIZE, self.enough_images // self.workers))

    def size_of(self, images: int, largest_row: int) -> int:
        """Return the images per shard of a run with fewer `images`: each worker gets several
        shards, and a shard has whole batches.

        Args:
            largest_row: images of the row that has most. A row lies in one shard.
        """
        shards = max(1, self.workers) * _SHARDS_PER_WORKER
        batches = max(_MIN_BATCHES, -(-images // (shards * self.batch)))
        return max(largest_row, min(DEFAULT_SHARD_SIZE, batches * self.batch))
