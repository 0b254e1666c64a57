"""Tell systemd how the worker is: sd_notify(3), for units of `Type=notify`."""

import logging
import os
import socket
from typing import Final

log = logging.getLogger(__name__)

_SOCKET: Final = "NOTIFY_SOCKET"
_TIMEOUT_S: Final = 1.0


def notify_systemd(*lines: str) -> None:
    """Send assignments such as `READY=1` or `WATCHDOG=1`. Do nothing outside of such a unit.

    A failure is logged: a worker goes on without systemd. If systemd reads nothing and its socket
    is full, the lines are given up after a second: the thread that renews the lease sends them.
    """
    address = os.environ.get(_SOCKET)
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # a socket in the abstract namespace
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(_TIMEOUT_S)
            sock.connect(address)
            sock.sendall("\n".join(lines).encode())
    except OSError as error:
        log.warning("systemd cannot be notified: %s", error)
