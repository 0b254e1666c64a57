"""Bound how many wrong keys each address may send, in the memory of one process.

This is the generic cell rate algorithm (ITU-T I.371): each wrong key costs a share of a minute, and
an address may owe one minute. So one number is kept for an address: the time at which it owes
nothing.
"""

import ipaddress
import time
from collections import OrderedDict
from typing import Final

CODE: Final = "too_many_wrong_keys"
"""It is the code of the problem of an address that sent too many."""
_MAX_ADDRESSES: Final = 10_000
"""Beyond these, the address whose latest wrong key is the oldest is forgotten."""
_MINUTE_S: Final = 60.0
_IPV6_PREFIX: Final = 64
"""Bits that name one customer's network: its hosts choose the other 64 as they like (RFC 8981)."""


class WrongKeys:
    """This class counts the wrong keys of addresses. The event loop uses it."""

    def __init__(self, per_minute: int) -> None:
        """
        Args:
            per_minute: an address may send so many at once, and as many in each later minute.
        """
        self._cost_s = _MINUTE_S / per_minute
        self._debts: OrderedDict[str, float] = OrderedDict()

    def take(self, peer: str) -> float:
        """Count one wrong key. Return 0 if its address may send it, else the seconds until it may.

        A refused one does not count.

        Args:
            peer: the IP address that the request comes from.
        """
        now, address = time.monotonic(), network_of(peer)
        debt_free_at = max(self._debts.get(address, now), now) + self._cost_s
        # The costs of a minute may add up to a little more than one, by rounding.
        if (wait_s := debt_free_at - now - _MINUTE_S) > self._cost_s / 1_000:
            return wait_s
        self._debts[address] = debt_free_at
        self._debts.move_to_end(address)
        if len(self._debts) > _MAX_ADDRESSES:
            self._debts.popitem(last=False)
        return 0.0


def network_of(peer: str) -> str:
    """Return what an address is counted as: itself, or its /64 if it is one of IPv6."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return ""  # a socket of this host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _IPV6_PREFIX), strict=False))
