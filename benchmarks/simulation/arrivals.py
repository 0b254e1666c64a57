"""Make arrival logs: when each job arrives, of whom, with how many steps and which shape.

Input: a rate, a number of jobs, a mix and a seed. Output: the log, sorted by time. Equal arguments
make equal logs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from imagefleet.worker.engine.contract.interface import Shape

SMALL: Final = Shape(height=512, width=512)
LARGE: Final = Shape(height=768, width=768)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One job of one image."""

    time_s: float
    tenant: str | None
    steps: int
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class Mix:
    """What the jobs of a log have in common."""

    min_steps: int = 10
    max_steps: int = 50
    tenants: int = 8
    shapes: Sequence[Shape] = (SMALL,)
    burst: int = 1
    """Jobs that arrive at the same moment."""

    @property
    def mean_steps(self) -> float:
        """The mean number of steps of a job."""
        return (self.min_steps + self.max_steps) / 2


def poisson(mix: Mix, rate: float, jobs: int, seed: int) -> list[Arrival]:
    """Return a log of `jobs` jobs that arrive at `rate` jobs a second.

    The times between the arrivals, or between the bursts, are exponential. A rate of infinity lets
    all jobs arrive at once.
    """
    rng = random.Random(seed)
    log: list[Arrival] = []
    now = 0.0
    while len(log) < jobs:
        now += rng.expovariate(rate / mix.burst) if rate != float("inf") else 0.0
        for _ in range(min(mix.burst, jobs - len(log))):
            log.append(
                Arrival(
                    time_s=now,
                    tenant=f"t{rng.randrange(mix.tenants)}" if mix.tenants > 1 else None,
                    steps=rng.randint(mix.min_steps, mix.max_steps),
                    shape=rng.choice(list(mix.shapes)),
                )
            )
    return log
