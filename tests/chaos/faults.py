"""Fault injection: kill, freeze and disconnect parts of the fleet at random times from a seed.

It runs in the main thread, because a Redis started from another thread would end with that thread.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from tests.chaos.fleet import Fleet
from tests.chaos.servers import Fault, Servers

KILL_EVERY_S: Final = 2.0
_FREEZE_EVERY_S: Final = 15.0
_TERMINATE_EVERY_S: Final = 11.0
_TICK_S: Final = 0.05


class Part(Protocol):
    """A part of the run beside the workers and Redis."""

    def kill(self, rng: random.Random) -> bool:
        """Kill a process of it with SIGKILL, if it runs. Return whether it did."""
        ...

    def refill(self) -> None:
        """Start each process of it that does not run."""
        ...


class Killed(NamedTuple):
    """A part that is killed now and then."""

    name: str
    part: Part
    every_s: float
    """The mean seconds between two kills."""


class FaultInjector:
    """The fault injector kills and freezes workers and Redis; `counts` has the number by kind."""

    def __init__(
        self,
        fleet: Fleet,
        server: Servers,
        seed: int,
        lease_s: float,
        others: Sequence[Killed] = (),
        pace: float = 1.0,
    ) -> None:
        """
        Args:
            pace: How many times as long the pauses between faults of workers are.
        """
        self._fleet, self._lease_s = fleet, lease_s
        self._others = [each.part for each in others]
        self._rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._faults: list[tuple[float, Callable[[], None]]] = [
            (pace * KILL_EVERY_S, self._kill),
            (pace * _FREEZE_EVERY_S, self._freeze),
            (pace * _TERMINATE_EVERY_S, self._terminate),
            *((every_s, partial(self._harm, fault)) for fault, every_s in server.faults.items()),
            *((each.every_s, partial(self._kill_other, each)) for each in others),
        ]

    def run(self, seconds: float, meanwhile: Callable[[], None]) -> None:
        """Inject faults for `seconds`, and call `meanwhile` in every iteration."""
        began = time.monotonic()
        due = [began + self._pause(every_s) for every_s, _ in self._faults]
        while time.monotonic() < began + seconds:
            for number, (every_s, inject) in enumerate(self._faults):
                if time.monotonic() >= due[number]:
                    inject()
                    due[number] += self._pause(every_s)
            self._fleet.refill()
            for part in self._others:
                part.refill()
            meanwhile()
            time.sleep(_TICK_S)

    def _pause(self, every_s: float) -> float:
        return every_s * self._rng.uniform(0.5, 1.5)

    def _harm(self, fault: Fault) -> None:
        self.counts[fault(self._rng, self._fleet)] += 1

    def _kill(self) -> None:
        self._rng.choice(self._fleet.workers).kill()
        self.counts["kill -9 of a worker"] += 1

    def _kill_other(self, other: Killed) -> None:
        if other.part.kill(self._rng):
            self.counts[f"kill -9 of {other.name}"] += 1

    def _freeze(self) -> None:
        """Stop a worker for longer than its lease."""
        if not_frozen := self._fleet.not_frozen():
            seconds = self._lease_s * self._rng.uniform(1.5, 3.0)
            self._fleet.freeze(self._rng.choice(not_frozen), seconds)
            self.counts["SIGSTOP beyond the lease, SIGCONT"] += 1

    def _terminate(self) -> None:
        if not_frozen := self._fleet.not_frozen():
            self._rng.choice(not_frozen).terminate()
            self.counts["SIGTERM with 1 s to drain"] += 1
