"""The Redis of a chaos run, one server or a cluster, and the faults that it has.

Input: a random generator. Output: what was done, in words.
"""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import redis

from imagefleet.shared.redis_client.connection import RETRY_FOREVER, connect, connect_lanes
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.chaos.fleet import Fleet
from tests.support.processes import until
from tests.support.redis import TcpServer
from tests.support.redis_cluster import RedisCluster

DISCONNECT_EVERY_S: Final = 9.0
_CRASH_EVERY_S: Final = 40.0
_KILL_MASTER_EVERY_S: Final = 20.0
_MOVE_EVERY_S: Final = 7.0

Fault = Callable[[random.Random, Fleet], str]
"""It does something to Redis, and says what."""


class Servers(Protocol):
    """The Redis of a run."""

    faults: Mapping[Fault, float]
    """They are with the mean seconds between two of the same kind."""

    @property
    def url(self) -> str: ...

    def lanes(self, namespace: str) -> Lanes:
        """Return clients of the fleet's lanes."""
        ...


class OneServer:
    """One server, which is disconnected from all clients, and killed and started again."""

    def __init__(self, server: LocalRedisServer) -> None:
        self._server = server
        self.url = server.url
        self.outages: list[tuple[float, float]] = []
        """Unix seconds at which Redis was killed and was started again."""
        self.faults: Mapping[Fault, float] = {
            self._disconnect: DISCONNECT_EVERY_S,
            self._crash: _CRASH_EVERY_S,
        }

    def lanes(self, namespace: str) -> Lanes:
        return Lanes.single(connect(self.url), namespace)

    def _disconnect(self, _rng: random.Random, _fleet: Fleet) -> str:
        """Close every client's connection, also those blocked in a command."""
        with connect(self.url) as client:
            return _close_connections(client)

    def _crash(self, rng: random.Random, fleet: Fleet) -> str:
        """Kill Redis and restart it from its append-only file."""
        began = time.time()
        self._server.kill()
        fleet.note_outage()
        time.sleep(rng.uniform(0.1, 2.0))
        self._server.start()
        self.outages.append((began, time.time()))
        return "kill -9 of Redis, restarted from its AOF"


class Cluster:
    """Three masters with a replica each. Masters are killed and come back as replicas, and the
    slots of lanes move."""

    def __init__(self, folder: Path) -> None:
        self.cluster = RedisCluster(folder, replicas=True)
        self._namespace = ""
        self.outages: list[tuple[float, float]] = []
        self.faults: Mapping[Fault, float] = {
            self._disconnect: DISCONNECT_EVERY_S,
            self._kill_master: _KILL_MASTER_EVERY_S,
            self._move_slot: _MOVE_EVERY_S,
        }

    @property
    def url(self) -> str:
        return self.cluster.url

    def lanes(self, namespace: str) -> Lanes:
        self._lanes = connect_lanes(self.url, namespace, retries=RETRY_FOREVER)
        return self._lanes

    def _disconnect(self, _rng: random.Random, _fleet: Fleet) -> str:
        for server in self._masters():
            with server.client() as client:
                said = _close_connections(client)
        return said

    def _kill_master(self, rng: random.Random, fleet: Fleet) -> str:
        """Kill a master that has told its replica everything, and start it as a replica of that."""
        began = time.time()
        namespace = self._any_lane(rng)
        server = self.cluster.master_of(namespace)
        with server.client() as client:
            client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
            until(lambda: _has_told_everything(client))
            server.kill()
        fleet.note_outage()
        until(lambda: self.cluster.master_of(namespace).port != server.port)
        self.cluster.restart(server)
        self.outages.append((began, time.time()))
        return "kill -9 of a master, whose replica took over"

    def _move_slot(self, rng: random.Random, _fleet: Fleet) -> str:
        self.cluster.move_slot_of(self._any_lane(rng))
        return "the slot of a lane moved to another master"

    def _any_lane(self, rng: random.Random) -> str:
        return rng.choice(list(self._lanes)).namespace

    def _masters(self) -> list[TcpServer]:
        servers = [self.cluster.master_of(lane.namespace) for lane in self._lanes]
        return list({server.port: server for server in servers}.values())


def _close_connections(client: redis.Redis) -> str:
    with suppress(redis.RedisError):
        client.execute_command("CLIENT", "KILL", "TYPE", "normal")
    return "CLIENT KILL TYPE normal"


def _has_told_everything(client: redis.Redis) -> bool:
    info = client.info("replication")
    replica = info.get("slave0")
    return isinstance(replica, dict) and replica["offset"] == info["master_repl_offset"]
