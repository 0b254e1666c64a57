"""Ports for servers of tests."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port of 127.0.0.1: the kernel assigns it to no other socket meanwhile.

    A server can bind it by its number, also again after it ended, if it sets SO_REUSEADDR as all
    servers do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))  # bound, but not listening
        yield int(held.getsockname()[1])
