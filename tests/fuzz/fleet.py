"""Run what the cases are tried on: a Redis, a folder store and one worker with the fake model."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self, cast

import redis

from imagefleet import Client, ImagefleetError
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import Worker, until

NAMESPACE: Final = "fuzz"
MAX_DELIVERIES: Final = 4

_PROBE_S: Final = 60.0
_KEPT_KEYS: Final = ("leases", "catalogue", "queues")
_SETTINGS: Final = {
    "IMAGEFLEET_NAMESPACE": NAMESPACE,
    "IMAGEFLEET_MODEL": "fake:seconds=0.001,capacity=8",
    "IMAGEFLEET_PROMPT_CHUNKS": "2",
    "IMAGEFLEET_LEASE_S": "10",
    "IMAGEFLEET_MAX_DELIVERIES": str(MAX_DELIVERIES),
    "IMAGEFLEET_MAX_RETRIES": "1",
    "IMAGEFLEET_NEWER_MESSAGE_S": "1",
    "IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.0/8",
}


class FuzzedFleet:
    """`with FuzzedFleet(folder) as fleet`: the fleet is ready, and an ordinary job was done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._probes = 0
        self._log_read = 0

    def __enter__(self) -> Self:
        server = self._stack.enter_context(LocalRedisServer(self._folder / "redis"))
        self.redis = redis.Redis.from_url(server.url)
        self._stack.callback(self.redis.close)
        self.client = self._stack.enter_context(Client(server.url, namespace=NAMESPACE))
        environment = {
            **_SETTINGS,
            "IMAGEFLEET_REDIS_URL": server.url,
            "IMAGEFLEET_STORAGE_URL": f"file://{self._folder}/store",
        }
        self.worker = Worker(self._folder, environment)
        self._stack.callback(self.worker.kill)
        until(lambda: self.client.workers() or not self.alive)
        self.probe()
        self.rss_at_start = self.memory_mb("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def alive(self) -> bool:
        """Whether the worker process runs."""
        return self.worker.process.poll() is None

    def worker_name(self) -> str:
        """Return the name of the worker, as leases have it."""
        [name] = cast(list[bytes], self.redis.zrange(f"{NAMESPACE}:leases", 0, -1))
        return name.decode()

    def store_file(self, key: str, content: bytes) -> None:
        """Put an object into the store of the worker."""
        path = self._folder / "store" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def probe(self) -> float:
        """Submit an ordinary job and return the seconds until it was done.

        Raises:
            ImagefleetError: it failed, or was not done in time.
        """
        self._probes += 1
        started = time.monotonic()
        job = self.client.submit("an ordinary job", id=f"probe-{self._probes}", priority=0)
        job.result(timeout=_PROBE_S)
        return time.monotonic() - started

    def memory_mb(self, field: str) -> float:
        """Return a field of the worker's `/proc/PID/status`, such as VmRSS, in MB."""
        with suppress(OSError):
            text = Path(f"/proc/{self.worker.process.pid}/status").read_text()
            for line in text.splitlines():
                if line.startswith(f"{field}:"):
                    return int(line.split()[1]) / 1000
        return 0.0

    def new_log(self) -> str:
        """Return what the worker logged since the last call."""
        with self.worker.log.open("rb") as log:
            log.seek(self._log_read)
            text = log.read()
        self._log_read += len(text)
        return text.decode(errors="replace")

    def push(self, queue: str, message: bytes) -> None:
        """Push a raw message to a queue's list, and make the queue known."""
        key = f"{NAMESPACE}.{queue}"
        self.redis.sadd(f"{NAMESPACE}:queues", key.partition("\x06")[0])
        self.redis.lpush(key, message)

    def waiting(self) -> dict[bytes, list[bytes]]:
        """Return the messages of all queues, by list."""
        keys = list(self.redis.scan_iter(f"{NAMESPACE}.*", count=10_000, _type="list"))
        return {key: cast(list[bytes], self.redis.lrange(key, 0, -1)) for key in keys}

    def claimed(self) -> list[bytes]:
        """Return the claims of all workers: list, \\0, message."""
        keys = self.redis.scan_iter(f"{NAMESPACE}:claims:*", count=10_000)
        return [entry for key in keys for entry in cast(list[bytes], self.redis.hvals(key))]

    def deliveries(self) -> list[int]:
        """Return the delivery counts that are not zero."""
        counts = cast(list[bytes], self.redis.hvals(f"{NAMESPACE}:deliveries"))
        return [int(count) for count in counts]

    def delayed(self) -> list[tuple[bytes, float]]:
        """Return the delayed messages with their due times."""
        found: Any = self.redis.zrange(f"{NAMESPACE}:later", 0, -1, withscores=True)
        return list(found)

    def clear(self) -> None:
        """Delete what a round leaves: records, dead letters, callbacks, results."""
        kept = {f"{NAMESPACE}:{name}".encode() for name in _KEPT_KEYS}
        for key in self._keys():
            if key not in kept and not key.startswith(f"{NAMESPACE}:claims:".encode()):
                self.redis.delete(key)

    def _keys(self) -> Iterator[bytes]:
        yield from self.redis.scan_iter(f"{NAMESPACE}:*", count=10_000)
        yield from self.redis.scan_iter("celery-task-meta-*", count=10_000)


def probe_sentence(fleet: FuzzedFleet) -> tuple[float, str]:
    """Probe the fleet. Return the seconds that it took, and what went wrong or ''."""
    started = time.monotonic()
    try:
        fleet.probe()
    except ImagefleetError as error:
        sentence = f"the next ordinary job was not done: {type(error).__name__}: {error}"
        return time.monotonic() - started, sentence
    return time.monotonic() - started, ""
