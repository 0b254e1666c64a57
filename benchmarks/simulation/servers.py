"""Start the servers of a simulated fleet: one, or the masters of a cluster."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from benchmarks.simulation.cpu_share import limited_to
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.redis_cluster import RedisCluster


@dataclass(frozen=True, kw_only=True)
class Servers:
    """The servers of a fleet, and clients to measure them with."""

    url: str
    pids: tuple[int, ...]
    clients: tuple[redis.Redis, ...]

    @contextmanager
    def limited_to(self, share: float) -> Iterator[None]:
        """Limit each server to a share of a core, within the context."""
        with ExitStack() as stack:
            for pid in self.pids if share < 1 else ():
                stack.enter_context(limited_to(pid, share))
            yield


@contextmanager
def started(folder: Path, masters: int, appendfsync: str) -> Iterator[Servers]:
    """Start a server, or a cluster of `masters` without replicas; 0 means no cluster."""
    if masters:
        with RedisCluster(folder, masters=masters) as cluster:
            servers = cluster.masters
            yield _configured(
                cluster.url,
                [server.process.pid for server in servers],
                [server.client() for server in servers],
                appendfsync,
            )
    else:
        with LocalRedisServer(folder) as server:
            yield _configured(server.url, [server.pid], [connect(server.url)], appendfsync)


def _configured(url: str, pids: list[int], clients: list[redis.Redis], appendfsync: str) -> Servers:
    for client in clients:
        client.config_set("appendfsync", appendfsync)
    return Servers(url=url, pids=tuple(pids), clients=tuple(clients))
