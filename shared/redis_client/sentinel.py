"""A Redis behind Sentinels: clients ask them for the master, and ask again after a failover.

    sentinel://[[user]:password@]host:26379,host2:26379/service[?db=0&sentinel_password=…]

`user` and `password` are those of Redis, `sentinel_password` is that of the Sentinels.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qsl, quote, unquote

if TYPE_CHECKING:
    from redis import Redis

SCHEME: Final = "sentinel://"
_DEFAULT_PORT: Final = 26379


@dataclass(frozen=True, kw_only=True)
class Address:
    """An address holds the parts of a `sentinel://` URL."""

    hosts: tuple[tuple[str, int], ...]
    service: str
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL. Raises ValueError, whose message says what is wrong."""
        rest, _, query = url.removeprefix(SCHEME).partition("?")
        authority, _, service = rest.partition("/")
        credentials, _, hosts = authority.rpartition("@")
        username, _, password = credentials.partition(":")
        options = dict(parse_qsl(query))
        db, sentinel_password = options.pop("db", "0"), options.pop("sentinel_password", None)
        for name in options:
            shown = name[:40].encode("ascii", "backslashreplace").decode()
            raise ValueError(
                f"has the unknown option {shown!r}; a sentinel:// address may have db, "
                "sentinel_password"
            )
        if not hosts or not service or "/" in service or not db.isdecimal():
            raise ValueError("must look like sentinel://host:26379,host2:26379/service?db=0")
        return cls(
            hosts=tuple(_parse_host(text) for text in hosts.split(",")),
            service=unquote(service),
            db=int(db),
            username=unquote(username) or None,
            password=unquote(password) or None,
            sentinel_password=sentinel_password,
        )

    def celery_url(self) -> str:
        """Return the address as kombu and Celery's result backend spell it."""
        credentials = ""
        if self.password is not None:
            credentials = f"{quote(self.username or '', safe='')}:{quote(self.password, safe='')}@"
        return ";".join(
            f"{SCHEME}{credentials}{host}:{port}/{self.db}" for host, port in self.hosts
        )

    def celery_options(self) -> dict[str, Any]:
        """Return the transport options for what `celery_url` cannot hold."""
        sentinel_options = {"password": self.sentinel_password} if self.sentinel_password else {}
        return {"master_name": self.service, "sentinel_kwargs": sentinel_options}


def connect(url: str, options: dict[str, Any], max_connections: int | None = None) -> "Redis":
    """Return a client of the current master. Raises ValueError like `Address.parse`."""
    from redis.sentinel import Sentinel

    from imagefleet.shared.redis_client.sentinel_connection import SentinelMasterConnection

    address = Address.parse(url)
    sentinel_options = {
        "socket_timeout": options["socket_connect_timeout"],
        "socket_connect_timeout": options["socket_connect_timeout"],
        "password": address.sentinel_password,
    }
    if max_connections is not None:
        from imagefleet.shared.redis_client.connection_cap import CappedSentinelPool

        pool = {"connection_pool_class": CappedSentinelPool, "connection_cap": max_connections}
        options = {**options, **pool}
    sentinel_class: Any = Sentinel  # redis-py types the class, but not `master_for`
    client: Redis = sentinel_class(address.hosts, sentinel_kwargs=sentinel_options).master_for(
        address.service,
        db=address.db,
        username=address.username,
        password=address.password,
        connection_class=SentinelMasterConnection,
        **options,
    )
    return client


def _parse_host(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    if not host or not (port or str(_DEFAULT_PORT)).isdecimal():
        raise ValueError(f"{text!r} is not the host:port of a Sentinel")
    return host, int(port or _DEFAULT_PORT)
