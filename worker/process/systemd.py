"""Tell systemd how the worker is: sd_notify(3), for units of `Type=notify`; and read the limits of
its unit."""

import logging
import os
import re
import socket
import subprocess
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

_SOCKET: Final = "NOTIFY_SOCKET"
_TIMEOUT_S: Final = 1.0
_UNIT: Final = "imagefleet-worker.service"
_SYSTEMCTL_TIMEOUT_S: Final = 5.0
_UNITS_S: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}


@dataclass(frozen=True, kw_only=True)
class UnitLimits:
    """What the unit of the worker says. None: there is no unit, or it sets no limit."""

    stop_s: float | None = None
    """It is `TimeoutStopSec`."""
    watchdog_s: float | None = None
    """It is `WatchdogSec`."""


def read_unit_limits() -> UnitLimits:
    """Ask systemd for the limits of the worker's unit on this host."""
    command = ["systemctl", "show", _UNIT, "--property=LoadState,TimeoutStopUSec,WatchdogUSec"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SYSTEMCTL_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return UnitLimits()
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    if found.get("LoadState") != "loaded":
        return UnitLimits()
    return UnitLimits(
        stop_s=_seconds(found.get("TimeoutStopUSec", "")),
        watchdog_s=_seconds(found.get("WatchdogUSec", "")),
    )


def _seconds(text: str) -> float | None:
    """Read a time such as `2min 15s`. None: `infinity`, 0, or no time."""
    parts = re.findall(r"([\d.]+)([a-z]+)", text)
    return sum(float(number) * _UNITS_S.get(unit, 0.0) for number, unit in parts) or None


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
