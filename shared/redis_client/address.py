"""Parse the options behind the `?` of a Redis address, and refuse those that have no effect.

Input: a `redis://`, `rediss://` or `unix://` address, or that of a cluster. Output: its options, or
an error that names a wrong one. `sentinel.py` does the same for Sentinels. This module connects to
nothing.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

_CREDENTIALS: Final = ("username", "password")
SECONDS: Final = ("socket_timeout", "socket_connect_timeout", "health_check_interval")
_CERTIFICATES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_CERT_REQS: Final = ("required", "optional", "none")
_OF_CLUSTERS: Final = (*_CREDENTIALS, *SECONDS)
_COMMON: Final = ("db", *_OF_CLUSTERS)
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "redis": _COMMON,
        "rediss": (*_COMMON, *_CERTIFICATES),
        "unix": _COMMON,
        "redis+cluster": _OF_CLUSTERS,
        "rediss+cluster": (*_OF_CLUSTERS, *_CERTIFICATES),
    }
)
"""The options that each kind of address may have."""
_MAX_SECONDS: Final = 86_400.0


def parse_options(url: str) -> dict[str, str]:
    """Return the options of an address.

    Raises:
        ValueError: there is no path of a Unix socket, or an option is unknown, given twice, or has
            a wrong value. The message names it and does not show the values of others.
    """
    scheme, query = url.partition("://")[0], url.partition("?")[2]
    if scheme == "unix" and not urlsplit(url).path.strip("/"):
        raise ValueError("must name a socket, as in unix:///run/redis.sock")
    known = OPTIONS[scheme]
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            shown = name[:40].encode("ascii", "backslashreplace").decode()
            raise ValueError(
                f"has the unknown option {shown!r}; a {scheme}:// address may have "
                + ", ".join(known)
            )
        if name in options:
            raise ValueError(f"has the option {name} twice")
        _check_value(name, value)
        options[name] = value
    return options


def move_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return the address without its options, and the options.

    Credentials among the options move to their place before the `@`, where redis-py, kombu and
    Celery all read them.
    """
    options = parse_options(url)
    address = url.partition("?")[0]
    given = {name: options.pop(name) for name in _CREDENTIALS if name in options}
    scheme, rest = address.split("://", 1)
    if given and "@" not in rest:
        user, password = (quote(given.get(name, ""), safe="") for name in _CREDENTIALS)
        address = f"{scheme}://{user}:{password}@{rest}"
    return address, options


def set_database(address: str, db: str) -> str:
    """Return a `redis://` or `rediss://` address without options that ends in this database."""
    return urlunsplit(urlsplit(address)._replace(path=f"/{db}"))


def _check_value(name: str, value: str) -> None:
    if name == "db" and not (value.isascii() and value.isdecimal()):
        raise ValueError("must have the number of a database as its option db")
    if name == "ssl_cert_reqs" and value not in _CERT_REQS:
        raise ValueError(f"must have one of {', '.join(_CERT_REQS)} as its option ssl_cert_reqs")
    if name in SECONDS and not 0 < _number(value) <= _MAX_SECONDS:
        raise ValueError(f"must have a number of seconds, at most 86400, as its option {name}")
    if name == "health_check_interval" and not value.isdecimal():
        raise ValueError("must have whole seconds as its option health_check_interval")
    if name.startswith("ssl_") and not value:
        raise ValueError(f"must have a value for its option {name}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
