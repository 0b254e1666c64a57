"""What Redis servers did since the last look: its CPU time, and how often each command ran."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import redis


@dataclass(frozen=True, kw_only=True)
class Load:
    """The difference of two looks."""

    cpu_s: float
    """User and system time of the processes, the background threads included."""
    calls: Mapping[str, int]
    """By command; those that scripts call are counted, too."""

    def calls_by_command(self, images: int) -> dict[str, float]:
        """Return the calls per image, the most frequent first."""
        ordered = sorted(self.calls.items(), key=lambda item: -item[1])
        return {command: calls / images for command, calls in ordered if calls}


class RedisLoad:
    """Reads the counters of some servers."""

    def __init__(self, *clients: redis.Redis) -> None:
        self._clients = clients
        self._cpu_s, self._calls = self._read()

    def since_last(self) -> Load:
        """Return what was done since the last call, or since the constructor."""
        before = self._cpu_s, self._calls
        self._cpu_s, self._calls = self._read()
        return Load(cpu_s=self._cpu_s - before[0], calls=self._calls - before[1])

    def _read(self) -> tuple[float, Counter[str]]:
        cpu_s, calls = 0.0, Counter[str]()
        for client in self._clients:
            cpu = client.info("cpu")
            cpu_s += float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])
            for name, each in client.info("commandstats").items():
                calls[name.removeprefix("cmdstat_").replace("|", " ")] += int(each["calls"])
        return cpu_s, calls
