"""Describe the memory of a device, as its runtime reports it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """It has the memory of one device, in bytes."""

    used: int
    limit: int
