"""Connect redis-py clients to Redis, and spell the same address for Celery."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from imagefleet.shared.errors import BrokerUnavailable, ConfigurationError
from imagefleet.shared.redis_client import cluster, sentinel
from imagefleet.shared.redis_client.address import SECONDS, move_credentials, set_database
from imagefleet.shared.redis_client.lanes import DEFAULT_LANES, Lanes

if TYPE_CHECKING:  # importing redis takes 0.25 s, which importing imagefleet must not
    from redis import Redis

    from imagefleet.shared.redis_client.cluster_map import ClusterMap

RETRY_FOREVER = -1
"""Number of retries for a worker, which may hold finished images."""
_ADVICE = "; start it or set IMAGEFLEET_REDIS_URL"


def connect(
    url: str,
    *,
    retries: int = 3,
    max_connections: int | None = None,
    answer_within_s: float = 10.0,
) -> "Redis":
    """Return a client for `url`, which connects at its first command.

    A command is retried `retries` times after a lost connection. With RETRY_FOREVER it is also
    retried while Redis takes no writes.

    Args:
        max_connections: connections that the threads of the client share. A thread waits until one
            is free. None: as many as threads use the client at the same time.
        answer_within_s: seconds in which Redis must answer each try of a command, unless `url` has
            the option `socket_timeout`. Connecting may take 5 of them.

    Raises:
        ConfigurationError: `url` is not the address of a Redis.
    """
    import redis

    options = _connection_options(url, retries, answer_within_s)
    with _wrong_address():
        if url.startswith(sentinel.SCHEME):
            return sentinel.connect(url, options, max_connections)
        address, given = move_credentials(url)
        full = f"{address}?{urlencode(given)}"
        if max_connections is None:
            return redis.Redis.from_url(full, **options)
        from imagefleet.shared.redis_client.connection_cap import CappedConnectionPool

        pool = CappedConnectionPool.from_url(full, connection_cap=max_connections, **options)
        return redis.Redis.from_pool(pool)


def connect_lanes(
    url: str,
    namespace: str,
    *,
    lanes: int = DEFAULT_LANES,
    retries: int = 3,
    max_connections: int | None = None,
    answer_within_s: float = 10.0,
) -> Lanes:
    """Return the lanes of a fleet, each with a client that connects at its first command.

    Any address but that of a cluster has one lane. The other arguments are those of `connect`;
    `max_connections` are those to one lane.

    Args:
        lanes: number of lanes that the fleet was made with, if `url` is the address of a cluster.

    Raises:
        ConfigurationError: `url` is not the address of a Redis or of a cluster.
    """
    if not url.startswith(cluster.SCHEMES):
        client = connect(
            url,
            retries=retries,
            max_connections=max_connections,
            answer_within_s=answer_within_s,
        )
        return Lanes.single(client, namespace)
    with _wrong_address():
        address = cluster.Address.parse(url)
        options = _connection_options(url, retries, answer_within_s)
        return cluster.connect(address, namespace, lanes, options, max_connections)


def cluster_map(url: str, *, answer_within_s: float) -> "ClusterMap":
    """Return what names the servers of the cluster at `url`; see `connect`."""
    with _wrong_address():
        options = _connection_options(url, 0, answer_within_s)
        return cluster.open_map(cluster.Address.parse(url), options)


@contextmanager
def _wrong_address() -> Iterator[None]:
    """Map the ValueError of a wrong address to ConfigurationError."""
    try:
        yield
    except ValueError as error:
        raise ConfigurationError(f"IMAGEFLEET_REDIS_URL: {error}") from None


def _connection_options(url: str, retries: int, answer_within_s: float) -> dict[str, Any]:
    import redis
    from redis.backoff import ExponentialBackoff
    from redis.retry import Retry

    from imagefleet.shared.redis_client.write_errors import RetryUntilWritable, WritesRefused

    forever = retries == RETRY_FOREVER
    retry_class = RetryUntilWritable if forever else Retry
    lost = [redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError]
    options: dict[str, Any] = {
        "decode_responses": True,
        "encoding_errors": "replace",  # a broken message must reach the code that rejects it
        "retry": retry_class(ExponentialBackoff(cap=1.0, base=0.05), retries=retries),
        "retry_on_error": [*lost, WritesRefused] if forever else lost,
        "socket_timeout": answer_within_s,
        "socket_connect_timeout": min(answer_within_s, 5.0),
        "health_check_interval": 30,
    }
    if url.startswith("unix:"):
        from imagefleet.shared.redis_client.unix_connection import UnixConnection

        options["connection_class"] = UnixConnection
    else:
        options["socket_keepalive"] = True
    return options


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Map redis-py's errors inside the block to BrokerUnavailable, without the password."""
    import redis

    try:
        yield
    except redis.RedisError as error:
        raise BrokerUnavailable(_describe_error(error, url)) from None


def check_connection(client: "Redis", url: str) -> None:
    """Raise BrokerUnavailable if Redis does not answer."""
    with translate_errors(url):
        client.ping()


def check_decodes(client: "Redis") -> "Redis":
    """Return a client of another owner. Raise ConfigurationError if its answers are bytes."""
    if not client.get_connection_kwargs().get("decode_responses"):
        raise ConfigurationError("redis: the client must be made with decode_responses=True")
    return client


def server_of(url: str) -> str:
    """Return the host, port and path of an address, without its credentials and options."""
    # Passwords may be in the part before the last @ and in the query.
    return url.partition("?")[0].rpartition("@")[2]


def _describe_error(error: Exception, url: str) -> str:
    import redis
    from redis.sentinel import MasterNotFoundError

    from imagefleet.shared.redis_client.write_errors import describe_failure, is_temporary

    where = server_of(url)
    if isinstance(error, MasterNotFoundError):
        return (
            f"no Sentinel of {where} answers with a master of that name; check their addresses, "
            "their password and the name"
        )
    refusals = (redis.AuthenticationError, redis.ResponseError)
    advice = "" if isinstance(error, refusals) or is_temporary(error) else _ADVICE
    return f"Redis at {where} {describe_failure(error)}{advice}"


def celery_url(url: str) -> str:
    """Return the same address in the spelling of kombu and Celery's result backend."""
    if url.startswith(sentinel.SCHEME):
        return sentinel.Address.parse(url).celery_url()
    address, options = move_credentials(url)
    for name in SECONDS:  # kombu and Celery would take them for texts
        options.pop(name, None)
    if url.startswith("unix://"):
        address = "redis+socket://" + address.removeprefix("unix://")
        if "db" in options:
            options["virtual_host"] = options.pop("db")
    elif "db" in options:
        address = set_database(address, options.pop("db"))
    if url.startswith("rediss://"):
        options.setdefault("ssl_cert_reqs", "required")
    return address + (f"?{urlencode(options)}" if options else "")


def transport_options(url: str) -> dict[str, Any]:
    """Return what `celery_url` cannot hold: Celery's `broker_transport_options` and
    `result_backend_transport_options`."""
    if url.startswith(sentinel.SCHEME):
        return {"socket_keepalive": True, **sentinel.Address.parse(url).celery_options()}
    return {"socket_keepalive": not url.startswith("unix:")}
