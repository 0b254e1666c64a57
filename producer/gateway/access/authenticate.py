"""Find out who sends a request, by the key in it.

Clients send a key as `Authorization: Bearer KEY` (openai, replicate), `Token KEY` (older clients of
Replicate), as the password of `Basic` (clients of AUTOMATIC1111), or in `X-API-Key`.
"""

import base64
import binascii
import ipaddress
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import LOOPBACK, Caller
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.producer.gateway.access.rates import RequestRates
from imagefleet.producer.gateway.access.trusted_proxy import TrustedProxy
from imagefleet.producer.gateway.access.wrong_keys import CODE, WrongKeys
from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.threads import Threads

_SCHEMES: Final = ("bearer", "token", "key")
_INVALID: Final = "invalid_api_key"
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")


class Authenticator:
    """Names the caller of each request."""

    def __init__(
        self,
        keys: ApiKeys | None,
        rates: RequestRates,
        wrong_keys: WrongKeys,
        threads: Threads,
        proxy: TrustedProxy,
    ) -> None:
        """
        Args:
            keys: None lets programs of this host in without a key.
        """
        self._keys = keys
        self._rates = rates
        self._wrong_keys = wrong_keys
        self._threads = threads
        self._proxy = proxy

    async def find(self, headers: Headers, peer: str) -> Caller:
        """Return the caller, who may yet be refused: see `check`.

        Args:
            peer: the IP address that the request comes from.

        Raises:
            Problem: 401 without a right key, 403 if a request comes another way than it says, 429
                if its address has sent too many wrong keys, and this is one more.
            BrokerUnavailable: Redis, which has the keys, does not answer.
        """
        if self._keys is None:
            check_local(headers)
            return LOOPBACK
        return self._proxy.caller(headers, peer) or await self._holder(self._keys, headers, peer)

    async def check(self, caller: Caller, scope: Scope | None) -> None:
        """Check that the caller has the scope, and that its request is within its rate.

        Raises:
            Problem: 401 for a key that is not valid any more, 403 without the scope, 429 beyond the
                rate.
            BrokerUnavailable: Redis does not answer.
        """
        if caller.refused is not None:
            raise Problem(401, _INVALID, f"{caller} {caller.refused}")
        if scope is not None and not caller.may(scope):
            raise Problem(403, "missing_scope", f"{caller} lacks the scope {scope}")
        if wait_s := await self._threads.run(self._rates.take, caller):
            message = f"{caller} may send {caller.per_minute} requests a minute"
            raise Problem(429, "rate_limited", message, retry_after_s=wait_s)

    async def _holder(self, keys: ApiKeys, headers: Headers, peer: str) -> Caller:
        """Return the holder of the key in a request. Raises Problem (401, 429), BrokerUnavailable.

        A right key is taken whatever its address has sent: others may share the address.
        """
        text = key_of(headers)
        if not text:
            raise _invalid("this gateway needs a key")
        key = await self._threads.run(keys.identify, text)
        if key is not None:
            return Caller.of(key, time.time())
        if wait_s := self._wrong_keys.take(peer):
            message = "this key is not valid, and too many wrong ones came from this address"
            raise Problem(429, CODE, message, retry_after_s=wait_s)
        raise _invalid("this key is not valid")


def _invalid(reason: str) -> Problem:
    return Problem(401, _INVALID, f"{reason}; send it as `Authorization: Bearer KEY`")


def key_of(headers: Mapping[str, str]) -> str:
    """Return the key that a request carries; '' if it has none."""
    scheme, _, rest = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() in _SCHEMES:
        return rest.strip()
    if scheme.lower() == "basic":
        return _password(rest.strip())
    return headers.get("x-api-key", "").strip()


def _password(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def check_local(headers: Mapping[str, str]) -> None:
    """Raise Problem for a request that a web page or a proxy sends on behalf of somebody else.

    A page may let a browser send requests to this host (cross-site request forgery), also under a
    name of its own that it lets point here (DNS rebinding).
    """
    if any(name in headers for name in _FORWARDED):
        message = "a gateway behind a proxy needs keys; set IMAGEFLEET_HTTP_REQUIRE_KEYS=true"
        raise Problem(403, "keys_required", message)
    host = headers.get("host", "")
    origin = headers.get("origin", f"http://{host}")
    if not is_loopback(host) or urlsplit(origin).netloc != host:
        message = "without keys only programs of this host are answered, and no other web pages"
        raise Problem(403, "not_local", message)


def is_loopback(host: str) -> bool:
    """Return whether a host, with or without a port, is this host."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
