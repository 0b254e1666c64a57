"""Callbacks go to public addresses only, unless the operator allows more."""

import socket
from ipaddress import ip_address

import pytest

from imagefleet.shared.errors import CallbackRefused, ConfigurationError
from imagefleet.worker.outbound.address_policy import AllowList, refusal_reason, resolve_allowed

ALLOW_NONE = AllowList()
PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946", "2a00:1450::1"]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_accepted(address: str) -> None:
    assert refusal_reason(ip_address(address)) is None


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("fd00::1", "private"),
        ("fd00:ec2::254", "private"),
        ("169.254.169.254", "link-local"),
        ("fe80::1", "link-local"),
        ("100.64.0.1", "carrier-grade NAT"),
        ("100.100.100.200", "carrier-grade NAT"),
        ("168.63.129.16", "host agent"),
        ("192.0.0.192", "reserved"),
        ("192.0.2.1", "documentation"),
        ("198.18.0.1", "benchmarking"),
        ("203.0.113.9", "documentation"),
        ("192.88.99.1", "6to4"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.250", "multicast"),
        ("ff02::1", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("::ffff:127.0.0.1", "IPv4 address in disguise"),
        ("::ffff:8.8.8.8", "IPv4 address in disguise"),
        ("64:ff9b::7f00:1", "NAT64"),
        ("64:ff9b::a9fe:a9fe", "NAT64"),
        ("64:ff9b:1::1", "NAT64"),
        ("2002:7f00:1::", "6to4"),
        ("2002:a9fe:a9fe::1", "6to4"),
        ("2001::1", "Teredo"),
        ("2001:db8::1", "documentation"),
        ("::7f00:1", "not allocated"),
        ("4000::1", "not allocated"),
        ("100::1", "not allocated"),
        ("fec0::1", "not allocated"),
    ],
)
def test_addresses_that_are_not_public_are_refused_with_the_reason(address: str, why: str) -> None:
    assert why in (refusal_reason(ip_address(address)) or "fine")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://017700000001/",
        "http://[::1]/",
        "http://[::ffff:7f00:1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://localhost:6379/",
        "http://0/",
        "https://169.254.169.254/latest/meta-data/",
    ],
)
def test_every_spelling_of_an_internal_address_is_refused(url: str) -> None:
    with pytest.raises(CallbackRefused, match="IMAGEFLEET_CALLBACK_ALLOW"):
        resolve_allowed(url, ALLOW_NONE)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://93.184.216.34/", "http"),
        ("file:///etc/passwd", "http"),
        ("//93.184.216.34/", "http"),
        ("http://", "http"),
        ("http://user:secret@93.184.216.34/", "user"),
        ("http://user@93.184.216.34/", "user"),
        ("http://93.184.216.34:99999/", "not a valid address"),
        ("http://93.184.216.34:http/", "not a valid address"),
        ("http://[::1/", "not a valid address"),
        (f"http://{'a' * 64}.example/", "not a valid address"),
        ("http://a..example/", "not a valid address"),
    ],
)
def test_urls_that_are_not_plain_http_are_refused(url: str, message: str) -> None:
    with pytest.raises(CallbackRefused, match=message) as refused:
        resolve_allowed(url, ALLOW_NONE)
    assert "secret" not in str(refused.value)


def _resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(None, None, None, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_one_internal_address_among_public_ones_refuses_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _resolve_to(monkeypatch, *PUBLIC, "10.0.0.1")
    with pytest.raises(CallbackRefused, match=r"rebind\.example is 10\.0\.0\.1: private"):
        resolve_allowed("https://rebind.example/", ALLOW_NONE)


def test_the_error_names_an_ip_address_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolve_to(monkeypatch, "10.0.0.1")
    with pytest.raises(CallbackRefused, match=r"^10\.0\.0\.1: private; IMAGEFLEET_CALLBACK_ALLOW"):
        resolve_allowed("http://10.0.0.1/", ALLOW_NONE)


def test_all_public_addresses_are_kept_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolve_to(monkeypatch, *PUBLIC, PUBLIC[0])
    assert resolve_allowed("https://hooks.example/", ALLOW_NONE).addresses == tuple(PUBLIC)


@pytest.mark.parametrize(
    ("url", "authority", "target", "secure"),
    [
        ("https://hooks.example", "hooks.example", "/", True),
        ("https://Hooks.Example:443/a", "hooks.example", "/a", True),
        ("http://hooks.example:8080/a?b=c&d#e", "hooks.example:8080", "/a?b=c&d", False),
        ("http://hooks.example:443/", "hooks.example:443", "/", False),
        ("http://hooks.example/a b/ä?ü=%20", "hooks.example", "/a%20b/%C3%A4?%C3%BC=%20", False),
        ("http://bücher.example/", "xn--bcher-kva.example", "/", False),
        ("http://[2606:2800::1]:8080/", "[2606:2800::1]:8080", "/", False),
    ],
)
def test_the_endpoint_keeps_the_parts_of_the_url(
    monkeypatch: pytest.MonkeyPatch, url: str, authority: str, target: str, secure: bool
) -> None:
    _resolve_to(monkeypatch, PUBLIC[0])
    endpoint = resolve_allowed(url, ALLOW_NONE)
    assert (endpoint.authority, endpoint.target, endpoint.secure) == (authority, target, secure)


@pytest.mark.parametrize("entry", ["127.0.0.1", "127.0.0.0/8", "127.0.0.5/8", "LOCALHOST.", "::1"])
def test_an_operator_may_allow_hosts_and_networks(entry: str) -> None:
    allow = AllowList.parse(["127.0.0.1", "::1"] if entry == "::1" else [entry])
    host = "localhost" if entry in ("LOCALHOST.", "::1") else "127.0.0.1"
    assert resolve_allowed(f"http://{host}:1234/", allow).port == 1234


def test_allowing_one_network_allows_no_other() -> None:
    with pytest.raises(CallbackRefused):
        resolve_allowed("http://127.0.0.1/", AllowList.parse(["10.0.0.0/8", "hooks.internal"]))


@pytest.mark.parametrize("entry", ["10.0.0.0/33", "10.0.0/x", "http://hooks.internal", "::zz"])
def test_an_invalid_allow_list_is_a_configuration_error(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="IMAGEFLEET_CALLBACK_ALLOW"):
        AllowList.parse([entry])


def test_a_name_that_does_not_resolve_now_raises_an_error_that_may_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getaddrinfo(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(OSError, match="try again"):
        resolve_allowed("https://hooks.example/", ALLOW_NONE)
