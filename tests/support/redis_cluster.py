"""A real cluster of Redis servers for tests."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

import redis
from redis.crc import key_slot

from tests.support.ports import reserved_port
from tests.support.processes import until
from tests.support.redis import TcpServer

_SLOTS: Final = 16_384
_NODE_TIMEOUT_MS: Final = 2_000
"""A replica is promoted about a second after its master was silent for so long."""


class _Node:
    """A server of the cluster, and what it is called there."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        bus_port = stack.enter_context(reserved_port())
        self.server = stack.enter_context(
            TcpServer(
                folder,
                *("--cluster-enabled", "yes", "--cluster-port", str(bus_port)),
                *("--cluster-node-timeout", str(_NODE_TIMEOUT_MS)),
                *(
                    "--cluster-require-full-coverage",
                    "no",
                    "--cluster-replica-validity-factor",
                    "0",
                ),
                *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
            )
        )
        self.client = stack.enter_context(self.server.client())
        self.bus_port = bus_port
        self.id = str(self.command("MYID"))

    def command(self, *arguments: str | int) -> Any:
        return self.client.execute_command("CLUSTER", *arguments)

    def is_in_sync(self) -> bool:
        """Return whether this replica has what its master has."""
        return bool(self.client.info("replication").get("master_link_status") == "up")

    def knows(self, nodes: int) -> bool:
        """Return whether this server sees a whole cluster of so many nodes."""
        info = str(self.command("INFO")).split()
        return {"cluster_state:ok", f"cluster_known_nodes:{nodes}"} <= set(info)


class RedisCluster:
    """A cluster of some masters, with a replica each where that is asked for:
    `with RedisCluster(folder) as cluster: connect_lanes(cluster.url, namespace)`.

    The slots are spread evenly. A slot whose master is down stops no other.
    """

    def __init__(self, folder: Path, *, masters: int = 3, replicas: bool = False) -> None:
        self._folder = folder
        self._masters = masters
        self._replicas = masters if replicas else 0
        self._stack = ExitStack()
        self._nodes: list[_Node] = []

    @property
    def url(self) -> str:
        """The address of the cluster."""
        hosts = ",".join(f"127.0.0.1:{node.server.port}" for node in self._nodes)
        return f"redis+cluster://{hosts}"

    @property
    def masters(self) -> list[TcpServer]:
        """The servers that were made masters at the start."""
        return [node.server for node in self._nodes[: self._masters]]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        count = self._masters + self._replicas
        self._nodes = [_Node(self._folder / f"node{n}", self._stack) for n in range(count)]
        masters, replicas = self._nodes[: self._masters], self._nodes[self._masters :]
        for number, node in enumerate(masters):
            first, last = (_SLOTS * at // self._masters for at in (number, number + 1))
            node.command("SET-CONFIG-EPOCH", number + 1)
            node.command("ADDSLOTSRANGE", first, last - 1)
        for node in self._nodes[1:]:
            node.command("MEET", "127.0.0.1", self._nodes[0].server.port, self._nodes[0].bus_port)
        until(lambda: all(node.knows(count) for node in self._nodes))
        for master, replica in zip(masters, replicas, strict=False):
            replica.command("REPLICATE", master.id)
        until(lambda: all(node.is_in_sync() for node in replicas))
        until(lambda: all(len(node.command("SLOTS")) == self._masters for node in self._nodes))

    def master_of(self, key: str) -> TcpServer:
        """Return the server that is the master of the slot of a key."""
        return self._master(key_slot(key.encode())).server

    def kill_master_of(self, key: str) -> TcpServer:
        """Kill the master of the slot of a key, once its replica has what it has."""
        master = self._master(key_slot(key.encode()))
        if self._replicas:
            with master.client.client() as connection:  # WAIT counts the writes of its connection
                connection.set(key, "killed", px=60_000)
                assert connection.wait(1, 60_000) == 1, "the replica does not answer"
        master.server.kill()
        return master.server

    def restart(self, server: TcpServer) -> None:
        """Start a killed server again, and return when it is a replica that has what its master
        has."""
        server.__enter__()
        [node] = [node for node in self._nodes if node.server is server]
        until(lambda: node.client.role()[0] in (b"slave", "slave") and node.is_in_sync())

    def move_slot_of(self, key: str) -> None:
        """Move the slot of a key, as a whole, to another master."""
        slot = key_slot(key.encode())
        source, target = self._master(slot), self._other_master(slot)
        source.command("MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
        until(lambda: all(self._owner(node, slot) == target.server.port for node in self._alive()))

    @contextmanager
    def moving_slot_of(self, key: str, *moved: str) -> Iterator[None]:
        """Move the slot of a key, key by key. Inside the block only the keys `moved` have moved."""
        slot = key_slot(key.encode())
        source, target = self._master(slot), self._other_master(slot)
        target.command("SETSLOT", slot, "IMPORTING", source.id)
        source.command("SETSLOT", slot, "MIGRATING", target.id)
        self._migrate(source, target, *moved)
        yield
        while keys := source.command("GETKEYSINSLOT", slot, 100):
            self._migrate(source, target, *keys)
        for node in (target, source):
            node.command("SETSLOT", slot, "NODE", target.id)
        until(lambda: all(self._owner(node, slot) == target.server.port for node in self._alive()))

    def _migrate(self, source: _Node, target: _Node, *keys: str) -> None:
        if keys:
            moved: Any = source.client.migrate(
                "127.0.0.1", target.server.port, list(keys), 0, 60_000
            )
            assert moved in (True, "OK"), moved

    def _alive(self) -> list[_Node]:
        return [node for node in self._nodes if node.server.process.poll() is None]

    def _master(self, slot: int) -> _Node:
        """Return the living server that serves a slot itself."""

        def found() -> _Node | None:
            for node in self._alive():
                if self._owner(node, slot) == node.server.port:
                    return node
            return None

        return until(found)

    def _other_master(self, slot: int) -> _Node:
        master = self._master(slot)
        ports = {int(served[2][1]) for served in master.command("SLOTS")} - {master.server.port}
        return next(node for node in self._alive() if node.server.port in ports)

    def _owner(self, node: _Node, slot: int) -> int | None:
        """Return the port of the master of a slot, as one server sees it."""
        try:
            ranges = node.command("SLOTS")
        except redis.RedisError:
            return None
        ports = [int(master[1]) for first, last, master, *_ in ranges if first <= slot <= last]
        return ports[0] if ports else None
