"""Take the caller from a header that a reverse proxy sets, which has checked who it is by OIDC.

The header counts only if the connection comes from the proxy. Whoever else sends it is refused.
"""

import ipaddress
from typing import Final

from starlette.datastructures import Headers

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.gateway_settings import Network
from imagefleet.producer.gateway.problems import Problem
from imagefleet.shared.jobs.model import check_name

_PRIORITY: Final = 3
_SCOPES: Final = frozenset({Scope.SUBMIT, Scope.READ})


class TrustedProxy:
    """Reads the tenant of requests from one header of one or more proxies."""

    def __init__(self, header: str, networks: tuple[Network, ...]) -> None:
        self._header: Final = header
        self._networks: Final = networks

    def caller(self, headers: Headers, peer: str) -> Caller | None:
        """Return the caller whom the proxy names; None if the request does not have the header.

        Args:
            peer: the IP address that the request comes from.

        Raises:
            Problem: 403 if the request is not the proxy's, or the header is no name of a tenant.
        """
        given = headers.getlist(self._header) if self._header else []
        if not given:
            return None
        if not self._is_proxy(peer):
            message = f"{self._header}: only the gateway's proxy may send this header"
            raise Problem(403, "not_the_proxy", message)
        if len(given) > 1:
            message = f"{self._header}: stands {len(given)} times in the request; must stand once"
            raise Problem(403, "wrong_proxy_header", message)
        try:
            tenant = check_name(given[0].strip())
        except ValueError as error:
            message = f"{self._header}={given[0][:128]!r}: {error}"
            raise Problem(403, "wrong_proxy_header", message) from None
        return Caller(
            key_id=None, name=tenant, tenant=tenant, scopes=_SCOPES, max_priority=_PRIORITY
        )

    def _is_proxy(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)
