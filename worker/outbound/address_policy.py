"""Decide which addresses that users name may be connected to.

Input: a URL. Output: the endpoint with its checked IP addresses. A connection to it does not ask
the resolver again, whose answer could have changed (DNS rebinding). The module sends nothing.
"""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, Self
from urllib.parse import quote, urlsplit

from imagefleet.shared.errors import CallbackRefused, ConfigurationError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

REFUSED_NETWORKS: Final = (
    (ip_network("0.0.0.0/8"), "unspecified"),
    (ip_network("10.0.0.0/8"), "private"),
    (ip_network("100.64.0.0/10"), "carrier-grade NAT"),
    (ip_network("127.0.0.0/8"), "loopback"),
    (ip_network("168.63.129.16/32"), "a cloud's host agent"),
    (ip_network("169.254.0.0/16"), "link-local, where clouds keep metadata"),
    (ip_network("172.16.0.0/12"), "private"),
    (ip_network("192.0.0.0/24"), "reserved"),
    (ip_network("192.0.2.0/24"), "documentation"),
    (ip_network("192.88.99.0/24"), "6to4 relay"),
    (ip_network("192.168.0.0/16"), "private"),
    (ip_network("198.18.0.0/15"), "benchmarking"),
    (ip_network("198.51.100.0/24"), "documentation"),
    (ip_network("203.0.113.0/24"), "documentation"),
    (ip_network("224.0.0.0/4"), "multicast"),
    (ip_network("240.0.0.0/4"), "reserved"),
    (ip_network("::/128"), "unspecified"),
    (ip_network("::1/128"), "loopback"),
    (ip_network("::ffff:0:0/96"), "an IPv4 address in disguise"),
    (ip_network("64:ff9b::/96"), "NAT64, an IPv4 address in disguise"),
    (ip_network("64:ff9b:1::/48"), "NAT64, an IPv4 address in disguise"),
    (ip_network("2001::/23"), "reserved, Teredo among it"),
    (ip_network("2001:db8::/32"), "documentation"),
    (ip_network("2002::/16"), "6to4, an IPv4 address in disguise"),
    (ip_network("3fff::/20"), "documentation"),
    (ip_network("fc00::/7"), "private"),
    (ip_network("fe80::/10"), "link-local"),
    (ip_network("ff00::/8"), "multicast"),
)
"""These networks of the IANA special-purpose address registries are refused, with the reason. They
are listed here because `ipaddress.is_global` accepts NAT64 and 6to4, and differs between versions
of Python."""

_IPV6_UNICAST: Final = IPv6Network("2000::/3")
"""The part of IPv6 that IANA has allocated for global unicast."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A checked destination of an HTTP request."""

    secure: bool
    """It says whether to use TLS."""
    host: str
    """It is the host of the URL in ASCII (IDNA), for the Host header and the certificate."""
    port: int
    target: str
    """It is path and query, percent-encoded (the request target of RFC 9112)."""
    addresses: tuple[str, ...]
    """These IP addresses are checked, and are tried in this order."""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = _DEFAULT_PORTS["https" if self.secure else "http"]
        return host if self.port == default else f"{host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class AllowList:
    """Hosts and networks that the operator allows although they are not public."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Self:
        """Parse entries such as `["127.0.0.1", "10.0.0.0/8", "hooks.internal"]`.

        Raises:
            ConfigurationError: an entry is neither a host nor a network.
        """
        hosts: set[str] = set()
        networks: list[Network] = []
        for entry in entries:
            try:
                networks.append(ip_network(entry, strict=False))
            except ValueError:
                if "/" in entry or ":" in entry:
                    raise ConfigurationError(
                        f"IMAGEFLEET_CALLBACK_ALLOW: {entry!r} is neither a host nor a network"
                    ) from None
                hosts.add(entry.lower().rstrip("."))
        return cls(hosts=frozenset(hosts), networks=tuple(networks))

    def allows_host(self, host: str) -> bool:
        """Return whether `host` is allowed by its name, whatever it resolves to."""
        return host.lower().rstrip(".") in self.hosts

    def allows_address(self, address: Address) -> bool:
        """Return whether `address` lies in an allowed network."""
        return any(address in network for network in self.networks)


def resolve_allowed(url: str, allow: AllowList) -> Endpoint:
    """Resolve `url` and check every address it has. One refused address refuses the URL.

    Raises:
        CallbackRefused: the URL is invalid or leads to a refused address; a retry will not help.
        OSError: the name does not resolve now.
    """
    scheme, host, port, target = _split_url(url)
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in resolved))
    if not allow.allows_host(host):
        for text in addresses:
            address = ip_address(text)
            if (why := refusal_reason(address)) and not allow.allows_address(address):
                which = host if host == text else f"{host} is {address}"
                raise CallbackRefused(f"{which}: {why}; IMAGEFLEET_CALLBACK_ALLOW would permit it")
    return Endpoint(
        secure=scheme == "https", host=host, port=port, target=target, addresses=addresses
    )


def refusal_reason(address: Address) -> str | None:
    """Return why requests to `address` are refused; None for a public address."""
    for network, why in REFUSED_NETWORKS:
        if address in network:
            return why
    if address.version == 6 and address not in _IPV6_UNICAST:
        return "not allocated for global unicast"
    return None if address.is_global else "not public"


def _split_url(url: str) -> tuple[str, str, int, str]:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError as error:  # UnicodeError among them
        raise CallbackRefused(f"not a valid address: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise CallbackRefused("must be an http:// or https:// address")
    if parts.username is not None or parts.password is not None:
        raise CallbackRefused("must not carry a user or a password")
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    if parts.query:
        target += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~?")
    return parts.scheme, host, port, target
