"""Data-parallel training: one process, or several that `torchrun` started, with one core each.

The processes share their gradients and the leader's clock. Processes that synchronise once per step
lose less time on a shared machine than threads that synchronise at every operation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """The processes that train together. Rank 0 is the leader and alone writes files."""

    rank: int = 0
    size: int = 1

    @property
    def is_leader(self) -> bool:
        """Whether this process writes the files and prints the progress."""
        return self.rank == 0

    @torch.no_grad()
    def average_(self, tensors: Iterable[Tensor | None]) -> None:
        """Replace each tensor by its mean over all processes."""
        if self.size == 1:
            return
        present = [one for one in tensors if one is not None]
        flat = torch.cat([one.reshape(-1) for one in present])
        dist.all_reduce(flat)
        flat /= self.size
        pieces = flat.split([one.numel() for one in present])
        torch._foreach_copy_(
            present, [new.view_as(old) for new, old in zip(pieces, present, strict=True)]
        )

    def from_leader(self, value: float) -> float:
        """Return the leader's value in every process."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(shared, src=0)
        return shared.item()

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        if self.size > 1:
            dist.barrier()


def join_process_group() -> ProcessGroup:
    """Join the group that `torchrun` started, or return a group of one process."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ProcessGroup()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    return ProcessGroup(rank=dist.get_rank(), size=size)
