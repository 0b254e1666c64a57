"""Have glibc return the memory of large buffers to the system."""

import ctypes
from contextlib import suppress
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
"""The parameter has this number in glibc's `malloc.h`."""
_LARGE_BYTES: Final = 1 << 22


def return_large_buffers(least_bytes: int = _LARGE_BYTES) -> None:
    """Have buffers of so many bytes or more returned to the system as soon as they are freed.

    By default glibc does this only until the first of them is freed, and then keeps those of up to
    32 MiB: in each of 8 arenas per core, where any small object behind them prevents the return.
    Workers and gateways read and decode images in many threads. What was freed before the call is
    returned now. Another C library is left as it is.

    Not for XLA on CPU: the buffers of each step would be zeroed pages of the kernel, which costs
    6 % of the images a second (`python -m benchmarks.bulk --only shapes`).
    """
    with suppress(AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, least_bytes)
        libc.malloc_trim(0)
