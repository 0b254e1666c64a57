"""What a Redis server did since the last look: its CPU time, and how often each command ran."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import redis


@dataclass(frozen=True, kw_only=True)
class Load:
    """The difference of two looks."""

    cpu_s: float
    """User and system time of the process, the background threads included."""
    calls: Mapping[str, int]
    """By command; those that scripts call are counted, too."""

    def calls_by_command(self, images: int) -> dict[str, float]:
        """Return the calls per image, the most frequent first."""
        ordered = sorted(self.calls.items(), key=lambda item: -item[1])
        return {command: calls / images for command, calls in ordered if calls}


class RedisLoad:
    """Reads the counters of one server."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._cpu_s, self._calls = self._read()

    def since_last(self) -> Load:
        """Return what was done since the last call, or since the constructor."""
        before = self._cpu_s, self._calls
        self._cpu_s, self._calls = self._read()
        return Load(cpu_s=self._cpu_s - before[0], calls=self._calls - before[1])

    def _read(self) -> tuple[float, Counter[str]]:
        cpu = self._client.info("cpu")
        commands = self._client.info("commandstats")
        calls = {
            name.removeprefix("cmdstat_").replace("|", " "): int(each["calls"])
            for name, each in commands.items()
        }
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]), Counter(calls)
