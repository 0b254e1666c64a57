"""One process, or several that train one module together, a core each.

Goes in: the environment that `torchrun` sets, or nothing. Comes out: who this process is,
and the two things a crew must agree on, gradients and time. Processes that meet once a
step lose less on a shared machine than threads that meet at every operation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Crew:
    """`rank` counts from 0, the leader, who alone writes files."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and shows the progress."""
        return self.rank == 0

    @torch.no_grad()
    def average_(self, tensors: Iterable[Tensor | None]) -> None:
        """Replaces each tensor by its mean over the crew."""
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

    def agreed(self, value: float) -> float:
        """The leader's value, for everyone."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(shared, src=0)
        return shared.item()

    def wait(self) -> None:
        """Until everyone is here."""
        if self.size > 1:
            dist.barrier()


def join_crew() -> Crew:
    """The crew that `torchrun` started, or a crew of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Crew()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    return Crew(rank=dist.get_rank(), size=size)
