"""Ask a cluster which of its servers is the master of a slot.

redis-py's `NodesManager` reads the answer of `CLUSTER SLOTS` and remembers the servers that it
names, so that a cluster is found also when those of its address are gone. This module sends no
command of the fleet.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from redis.cluster import ClusterNode, NodesManager
from redis.exceptions import RedisClusterException


@dataclass(frozen=True, kw_only=True)
class Master:
    """A master of a cluster: its slots, and a client of each of its servers for what is no key."""

    address: str
    """It is `host:port`, as the cluster names it."""
    client: redis.Redis
    slots: frozenset[int]
    replicas: Mapping[str, redis.Redis]
    """It holds the clients of its replicas, by their addresses, but of none that the cluster takes
    for down."""


class ClusterMap:
    """The map asks at each call, once for all threads that wait meanwhile: a server that hangs may
    hold up each question. Threads and lanes share one.

    Args:
        hosts: some servers of the cluster.
        options: of connections to them.
    """

    def __init__(self, hosts: Sequence[tuple[str, int]], options: dict[str, Any]) -> None:
        self._hosts = hosts
        self._options = options
        self._lock = threading.Lock()
        self._nodes: Any = None
        self._asked_at = float("-inf")
        """When the latest question was asked that has been answered (monotonic)."""

    def master_of(self, slot: int) -> tuple[str, int]:
        """Return the host and port of the master of a slot.

        Raises:
            redis.AuthenticationError: the servers refuse the credentials.
            redis.ConnectionError: no server answers, or none has the slot now.
        """
        began = time.monotonic()
        with self._lock, _translate_errors():
            self._ask(began)
            node = self._nodes.get_node_from_slot(slot)
        return node.host, node.port

    def masters(self) -> list[Master]:
        """Return the masters that have slots. Each server has a client, which does not retry.

        Raises:
            redis.AuthenticationError: the servers refuse the credentials.
            redis.ConnectionError: no server answers.
        """
        began = time.monotonic()
        with self._lock, _translate_errors():
            self._ask(began)
            servers: dict[str, list[Any]] = {}
            slots: dict[str, set[int]] = {}
            for slot, nodes in self._nodes.slots_cache.items():
                servers[nodes[0].name] = nodes
                slots.setdefault(nodes[0].name, set()).add(slot)
        return [
            Master(
                address=address,
                client=nodes[0].redis_connection,
                slots=frozenset(slots[address]),
                replicas={node.name: node.redis_connection for node in nodes[1:]},
            )
            for address, nodes in sorted(servers.items())
        ]

    def _ask(self, since: float) -> None:
        """Ask, unless a question that began after `since` has been answered."""
        if self._asked_at >= since:
            return
        asked_at = time.monotonic()
        if self._nodes is not None:
            self._nodes.initialize()
        else:
            manager: Any = NodesManager  # redis-py types few of its methods
            nodes = [ClusterNode(host, port) for host, port in self._hosts]  # type: ignore[no-untyped-call]
            self._nodes = manager(nodes, **self._options)
        self._asked_at = asked_at


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except RedisClusterException as error:
        if isinstance(error.__cause__, redis.AuthenticationError):
            raise error.__cause__ from None
        raise redis.ConnectionError(f"the cluster names no master: {error}") from error
