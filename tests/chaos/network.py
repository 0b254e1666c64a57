"""A network of hosts on this machine: network namespaces on a bridge, and ways to cut one off.

It needs root and the program `ip` of iproute2. This process itself is the server of the network: it
gets an interface with the address `SERVER`.
"""

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, Self

SERVER: Final = "10.77.0.1"
_MAC: Final = "02:00:00:00:00:01"


class Network:
    """The network has a bridge with the server and the hosts, and a second one with an impostor.

    The impostor has the server's addresses, and nothing listens there: the kernel answers each
    segment of TCP with a reset.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        """
        Args:
            hosts: their names, at most four characters each.
        """
        self._prefix = f"if{os.getpid()}"
        self._hosts = list(hosts)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for name in ("hub", "fake", *self._hosts):
                _run("ip", "netns", "add", self._namespace(name))
                stack.callback(_run, "ip", "netns", "delete", self._namespace(name))
            for bridge in ("real", "false"):
                self._in_hub("add", "name", bridge, "type", "bridge", "forward_delay", "0")
                self._in_hub("set", "dev", bridge, "up")
            self._connect("srv", SERVER, None, "real", _MAC)
            self._connect("fake", SERVER, self._namespace("fake"), "false", _MAC)
            for number, name in enumerate(self._hosts):
                address = f"10.77.0.{10 + number}"
                self._connect(name, address, self._namespace(name), "real")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()  # a namespace takes its interfaces, and their peers, with it

    def command(self, host: str, *command: str) -> list[str]:
        """Return the command that runs `command` on a host. It keeps its process id."""
        return ["ip", "netns", "exec", self._namespace(host), *command]

    def cut(self, host: str) -> None:
        """Drop everything from and to a host. Nobody is told."""
        self._in_hub("set", "dev", host, "nomaster")

    def cut_with_resets(self, host: str) -> None:
        """Answer everything that a host sends to the server with a reset."""
        self._in_hub("set", "dev", host, "master", "false")

    def heal(self, host: str) -> None:
        """Connect a host with the server again."""
        self._in_hub("set", "dev", host, "master", "real")

    def _connect(
        self, name: str, address: str, namespace: str | None, bridge: str, mac: str | None = None
    ) -> None:
        """Give a namespace, or this process's own, an interface whose other end is in a bridge."""
        interface = f"{self._prefix}{name}"
        peer = ("peer", "name", name, "netns", self._namespace("hub"))
        hardware = ("address", mac) if mac else ()
        _run("ip", "link", "add", interface, *hardware, "type", "veth", *peer)
        if namespace is not None:
            _run("ip", "link", "set", interface, "netns", namespace)
        inside = ("ip",) if namespace is None else ("ip", "-n", namespace)
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "address", "add", f"{address}/24", "dev", interface)
        _run(*inside, "link", "set", interface, "up")
        self._in_hub("set", "dev", name, "master", bridge, "up")

    def _in_hub(self, *arguments: str) -> None:
        _run("ip", "-n", self._namespace("hub"), "link", *arguments)

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}{name}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
