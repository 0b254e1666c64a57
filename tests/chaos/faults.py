"""Fault injection: kill, freeze and disconnect parts of the fleet at random times from a seed.

It runs in the main thread, because a Redis started from another thread would end with that thread.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import redis

from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.chaos.fleet import Fleet
from tests.chaos.gateways import Gateways

KILL_EVERY_S: Final = 2.0
_FREEZE_EVERY_S: Final = 15.0
_TERMINATE_EVERY_S: Final = 11.0
_DISCONNECT_EVERY_S: Final = 9.0
_CRASH_EVERY_S: Final = 40.0
_KILL_GATEWAY_EVERY_S: Final = 6.0
_TICK_S: Final = 0.05


class FaultInjector:
    """The fault injector kills and freezes workers and Redis; `counts` has the number by kind."""

    def __init__(
        self,
        fleet: Fleet,
        server: LocalRedisServer,
        seed: int,
        lease_s: float,
        gateways: Gateways | None = None,
    ) -> None:
        self._fleet, self._server, self._lease_s = fleet, server, lease_s
        self._gateways = gateways
        self._rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.outages: list[tuple[float, float]] = []
        """Unix seconds at which Redis was killed and was started again."""
        self._faults: list[tuple[float, Callable[[], None]]] = [
            (KILL_EVERY_S, self._kill),
            (_FREEZE_EVERY_S, self._freeze),
            (_TERMINATE_EVERY_S, self._terminate),
            (_DISCONNECT_EVERY_S, self._disconnect),
            (_CRASH_EVERY_S, self._crash),
        ]
        if gateways is not None:
            self._faults.append((_KILL_GATEWAY_EVERY_S, self._kill_gateway))

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
            if self._gateways is not None:
                self._gateways.refill()
            meanwhile()
            time.sleep(_TICK_S)

    def _pause(self, every_s: float) -> float:
        return every_s * self._rng.uniform(0.5, 1.5)

    def _kill(self) -> None:
        self._rng.choice(self._fleet.workers).kill()
        self.counts["kill -9 of a worker"] += 1

    def _kill_gateway(self) -> None:
        assert self._gateways is not None
        self._gateways.kill(self._rng)
        self.counts["kill -9 of a gateway"] += 1

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

    def _disconnect(self) -> None:
        """Close every client's connection, also those blocked in a command."""
        with connect(self._server.url) as client, suppress(redis.RedisError):
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        self.counts["CLIENT KILL TYPE normal"] += 1

    def _crash(self) -> None:
        """Kill Redis and restart it from its append-only file."""
        began = time.time()
        self._server.kill()
        self._fleet.note_outage()
        time.sleep(self._rng.uniform(0.1, 2.0))
        self._server.start()
        self.outages.append((began, time.time()))
        self.counts["kill -9 of Redis, restarted from its AOF"] += 1
