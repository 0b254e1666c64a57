"""Connections to Redis: redis-py clients, and the same address as Celery spells it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from imagefleet.shared.errors import BrokerUnavailable, ConfigurationError
from imagefleet.shared.redis_client import sentinel

if TYPE_CHECKING:  # a quarter of a second that `import producer` does not spend
    from redis import Redis

RETRY_FOREVER = -1
"""Retries of a worker that holds finished pictures."""


def connect(url: str, *, retries: int = 3) -> "Redis":
    """A client for `url`. Connects at the first command, retries a lost connection `retries` times.

    Raises:
        ConfigurationError: not an address of a Redis.
    """
    import redis
    from redis.backoff import ExponentialBackoff
    from redis.retry import Retry

    from imagefleet.shared.redis_client.write_errors import RetryUntilWritable, WritesRefused

    patient = retries == RETRY_FOREVER
    kind = RetryUntilWritable if patient else Retry
    lost = [redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError]
    options: dict[str, Any] = {
        "decode_responses": True,
        "encoding_errors": "replace",  # rubbish on a queue must reach the code that refuses it
        "retry": kind(ExponentialBackoff(cap=1.0, base=0.05), retries=retries),
        "retry_on_error": [*lost, WritesRefused] if patient else lost,
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "health_check_interval": 30,
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    try:
        if url.startswith(sentinel.SCHEME):
            return sentinel.connect(url, options)
        return redis.Redis.from_url(url, **options)
    except ValueError as error:
        raise ConfigurationError(f"IMAGEFLEET_REDIS_URL: {error}") from None


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Map redis-py's errors inside the block to BrokerUnavailable, without the password."""
    import redis

    try:
        yield
    except redis.RedisError as error:
        raise BrokerUnavailable(_sentence(error, url)) from None


def check_connection(client: "Redis", url: str) -> None:
    """Raise BrokerUnavailable with one clear sentence unless Redis answers."""
    with translate_errors(url):
        client.ping()


def _sentence(error: Exception, url: str) -> str:
    import redis
    from redis.sentinel import MasterNotFoundError

    from imagefleet.shared.redis_client.write_errors import is_temporary

    where = url.partition("?")[0].rpartition("@")[2]  # passwords stand before and behind
    if isinstance(error, MasterNotFoundError):
        return f"no Sentinel of {where} lets us ask it and knows a master of that name"
    if isinstance(error, redis.AuthenticationError):
        return f"Redis at {where} refuses the credentials: {error}"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return f"Redis at {where} does not give this user the rights of docs/redis.md: {error}"
    if isinstance(error, redis.OutOfMemoryError):
        return f"Redis at {where} is full and took nothing: {error}"
    if is_temporary(error):
        return f"Redis at {where} takes no writes for now and took nothing: {error}"
    if isinstance(error, redis.ResponseError):
        return f"Redis at {where} refuses: {error}"
    return f"Redis at {where} does not answer ({error}); start it or set IMAGEFLEET_REDIS_URL"


def celery_url(url: str) -> str:
    """The same address in the spelling of kombu and Celery's result backend."""
    if url.startswith(sentinel.SCHEME):
        return sentinel.Address.parse(url).celery_url()
    address, _, query = url.partition("?")
    options = dict(parse_qsl(query))
    if url.startswith("unix://"):
        address = "redis+socket://" + address.removeprefix("unix://")
        if "db" in options:
            options["virtual_host"] = options.pop("db")
    if url.startswith("rediss://"):
        options.setdefault("ssl_cert_reqs", "required")
    return address + (f"?{urlencode(options)}" if options else "")


def transport_options(url: str) -> dict[str, Any]:
    """What `celery_url` cannot say: for `broker_` and `result_backend_transport_options`."""
    if url.startswith(sentinel.SCHEME):
        return {"socket_keepalive": True, **sentinel.Address.parse(url).celery_options()}
    return {"socket_keepalive": not url.startswith("unix:")}
