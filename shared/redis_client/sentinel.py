"""A Redis that Sentinels watch: clients ask them for the master, again after each failover.

    sentinel://[[user]:password@]host:26379,host2:26379/service[?db=0&sentinel_password=…]

User and password are those of the Redis itself.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qsl, quote, unquote

if TYPE_CHECKING:
    from redis import Redis

SCHEME: Final = "sentinel://"
_PORT: Final = 26379


@dataclass(frozen=True, kw_only=True)
class Address:
    """What such a URL says."""

    hosts: tuple[tuple[str, int], ...]
    service: str
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ValueError with a sentence."""
        rest, _, query = url.removeprefix(SCHEME).partition("?")
        place, _, service = rest.partition("/")
        credentials, _, hosts = place.rpartition("@")
        username, _, password = credentials.partition(":")
        options = dict(parse_qsl(query))
        db, sentinel_password = options.pop("db", "0"), options.pop("sentinel_password", None)
        if not hosts or not service or "/" in service or not db.isdecimal() or options:
            raise ValueError("must look like sentinel://host:26379,host2:26379/service?db=0")
        return cls(
            hosts=tuple(_host(text) for text in hosts.split(",")),
            service=unquote(service),
            db=int(db),
            username=unquote(username) or None,
            password=unquote(password) or None,
            sentinel_password=sentinel_password,
        )

    def celery_url(self) -> str:
        """As kombu and Celery's result backend spell it; the rest is in `celery_options`."""
        credentials = ""
        if self.password is not None:
            credentials = f"{quote(self.username or '', safe='')}:{quote(self.password, safe='')}@"
        return ";".join(
            f"{SCHEME}{credentials}{host}:{port}/{self.db}" for host, port in self.hosts
        )

    def celery_options(self) -> dict[str, Any]:
        """What the URL cannot tell them."""
        watchers = {"password": self.sentinel_password} if self.sentinel_password else {}
        return {"master_name": self.service, "sentinel_kwargs": watchers}


def connect(url: str, options: dict[str, Any]) -> "Redis":
    """A client of whoever is master now. Raises ValueError as `Address.parse`."""
    from redis.sentinel import Sentinel

    from imagefleet.shared.redis_client.sentinel_connection import SentinelMasterConnection

    address = Address.parse(url)
    watchers = {
        "socket_timeout": options["socket_connect_timeout"],
        "socket_connect_timeout": options["socket_connect_timeout"],
        "password": address.sentinel_password,
    }
    sentinels: Any = Sentinel  # redis-py types the class, but not this part of it
    found: Redis = sentinels(address.hosts, sentinel_kwargs=watchers).master_for(
        address.service,
        db=address.db,
        username=address.username,
        password=address.password,
        connection_class=SentinelMasterConnection,
        **options,
    )
    return found


def _host(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    if not host or not (port or str(_PORT)).isdecimal():
        raise ValueError(f"{text!r} is not a Sentinel's host:port")
    return host, int(port or _PORT)
