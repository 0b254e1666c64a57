"""A Redis cluster: each lane of a fleet has a client, which follows the master of its slot.

    redis+cluster://[[user]:password@]host:6379,host2:6379[?options]
    rediss+cluster://…  with TLS

The options are those of `redis://` and `rediss://`, without `db`: a cluster has one database.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

from imagefleet.shared.redis_client.address import SECONDS, parse_options
from imagefleet.shared.redis_client.lanes import Lane, Lanes, lane_namespace

if TYPE_CHECKING:
    from redis import Redis

    from imagefleet.shared.redis_client.cluster_map import ClusterMap

SCHEMES: Final = ("redis+cluster://", "rediss+cluster://")
_DEFAULT_PORT: Final = 6379
_MISSING: Final = ":missing"
"""No key of a lane has this name."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """An address holds the parts of a `redis+cluster://` URL."""

    hosts: tuple[tuple[str, int], ...]
    tls: bool = False
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    """They configure each connection, and hold the credentials."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL. Raises ValueError, whose message says what is wrong."""
        options: dict[str, Any] = {**parse_options(url)}
        scheme, _, rest = url.partition("?")[0].partition("://")
        authority, _, path = rest.partition("/")
        credentials, _, hosts = authority.rpartition("@")
        if not hosts or path:
            raise ValueError(f"must look like {scheme}://host:6379,host2:6379, without a path")
        username, _, password = credentials.partition(":")
        given = {"username": unquote(username), "password": unquote(password)}
        options |= {name: value for name, value in given.items() if value}
        for name in SECONDS:
            if name in options:
                options[name] = float(options[name])
        parsed = tuple(_parse_host(text) for text in hosts.split(","))
        return cls(hosts=parsed, tls=scheme.startswith("rediss"), options=options)


def connect(
    address: Address,
    namespace: str,
    lanes: int,
    options: dict[str, Any],
    max_connections: int | None = None,
) -> Lanes:
    """Return the lanes of a fleet, each with a client, which connects at its first command.

    Args:
        lanes: number of lanes that the fleet was made with.
        options: of each connection.
        max_connections: connections to each lane that threads share. None: no limit.
    """
    cluster = open_map(address, options)
    options = {**options, **address.options}
    return Lanes(
        [
            Lane(
                number=number,
                namespace=(own := lane_namespace(namespace, number)),
                client=_client(cluster, own, options, max_connections, tls=address.tls),
            )
            for number in range(lanes)
        ]
    )


def open_map(address: Address, options: dict[str, Any]) -> "ClusterMap":
    """Return what asks the cluster for its masters. It connects at its first question."""
    from imagefleet.shared.redis_client.cluster_map import ClusterMap

    options = {**options, **address.options}
    unused = ("retry", "retry_on_error", "health_check_interval")
    asking = {name: value for name, value in options.items() if name not in unused}
    asking["socket_timeout"] = options["socket_connect_timeout"]
    return ClusterMap(address.hosts, {**asking, "ssl": True} if address.tls else asking)


def _client(
    cluster: "ClusterMap",
    namespace: str,
    options: dict[str, Any],
    max_connections: int | None,
    *,
    tls: bool,
) -> "Redis":
    """Return the client of one lane, whose keys are in the slot of its namespace."""
    from redis import ConnectionPool
    from redis.crc import key_slot

    from imagefleet.shared.redis_client.cluster_connection import SlotConnection, SslSlotConnection
    from imagefleet.shared.redis_client.lane_client import lane_client

    pool_options: dict[str, Any] = {
        **options,
        "connection_class": SslSlotConnection if tls else SlotConnection,
        "cluster": cluster,
        "slot": key_slot(namespace.encode()),
    }
    if max_connections is None:
        pool = ConnectionPool(**pool_options)
    else:
        from imagefleet.shared.redis_client.connection_cap import CappedConnectionPool

        pool = CappedConnectionPool(connection_cap=max_connections, **pool_options)
    return lane_client(pool, namespace + _MISSING)


def _parse_host(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(_DEFAULT_PORT))
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not the host:port of a server of the cluster")
    return host.strip("[]"), int(port)
