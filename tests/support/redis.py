"""Redis servers for tests: over TCP, with users, with a Sentinel, or behind TLS."""

import itertools
import socket
import ssl
import subprocess
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis

from imagefleet.shared.process.child_process import die_with_parent
from imagefleet.shared.redis_client.local_server import find_server
from tests.support.ports import reserved_port
from tests.support.processes import until


class TcpServer:
    """A server process on a port of 127.0.0.1, which it keeps also while the process is not alive:
    `with TcpServer(folder, "--requirepass", "secret")`."""

    def __init__(self, folder: Path, *options: str, config: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self.port = self._stack.enter_context(reserved_port())
        self._log = folder / "redis.log"
        file = folder / "redis.conf"
        file.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n{config}\n")
        self._command = [find_server(), str(file), *options]

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, preexec_fn=die_with_parent()
            )
        try:
            until(self._is_listening)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._stack.close()

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def client(self, **options: str) -> redis.Redis:
        """Return a client of this server."""
        return redis.Redis(port=self.port, decode_responses=True, **options)  # type: ignore[arg-type]

    def _is_listening(self) -> bool:
        ended = self.process.poll()
        assert ended is None, f"the server ended with {ended}: {self._log.read_text()[-3000:]}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class SentinelPair:
    """A master, its replica, and one Sentinel that promotes the replica if the master dies.

    `password` is that of the Sentinel.
    """

    def __init__(self, folder: Path, password: str = "") -> None:
        durable = ("--appendonly", "yes", "--save", "")
        self._stack = ExitStack()
        self.master = TcpServer(folder / "master", *durable)
        self.replica = TcpServer(
            folder / "replica", *durable, "--replicaof", f"127.0.0.1 {self.master.port}"
        )
        self.sentinel = TcpServer(
            folder / "sentinel",
            "--sentinel",
            config=f"sentinel monitor fleet 127.0.0.1 {self.master.port} 1\n"
            "sentinel down-after-milliseconds fleet 3000\n"
            "sentinel failover-timeout fleet 3000\n"
            + (f'requirepass "{password}"\n' if password else ""),
        )
        self._password = password

    @property
    def url(self) -> str:
        """The `sentinel://` address of the pair."""
        secret = f"?sentinel_password={quote(self._password)}" if self._password else ""
        return f"sentinel://127.0.0.1:{self.sentinel.port}/fleet{secret}"

    def __enter__(self) -> Self:
        for server in (self.master, self.replica, self.sentinel):
            self._stack.enter_context(server)
        until(lambda: self.replica.client().info("replication")["master_link_status"] == "up")
        until(lambda: self._sentinel_client().sentinel_slaves("fleet"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cut_replication(self) -> None:
        """Cut the replica off: it gets none of the later writes to the master."""
        self.replica.client().replicaof("127.0.0.1", "1")

    def fail_over(self) -> None:
        """Kill the master, and return when the Sentinel names the replica as the new one."""
        self.master.kill()
        until(lambda: self._master_port() == self.replica.port)

    def _master_port(self) -> int:
        address = self._sentinel_client().sentinel_get_master_addr_by_name("fleet")
        assert isinstance(address, tuple)
        return int(address[1])

    def _sentinel_client(self) -> redis.Redis:
        return self.sentinel.client(**({"password": self._password} if self._password else {}))


class RedisProxy:
    """A proxy before a Redis: `redis://localhost:<port>`, or with TLS `rediss://localhost:<port>`.

    Args:
        context: for TLS.
        dropped: number of connections that are closed at once, the first ones.
    """

    def __init__(
        self, unix_socket: str, context: ssl.SSLContext | None = None, dropped: int = 0
    ) -> None:
        self._context = context
        self._dropped = dropped
        self._unix_socket = unix_socket
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        for number in itertools.count():
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            if number < self._dropped:
                raw.close()
            else:
                threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        with raw, suppress(OSError):  # the client does not trust us, or Redis ended
            outside = self._context.wrap_socket(raw, server_side=True) if self._context else raw
            with outside, socket.socket(socket.AF_UNIX) as inside:
                inside.connect(self._unix_socket)
                back = threading.Thread(target=_pump, args=(inside, outside), daemon=True)
                back.start()
                _pump(outside, inside)
                back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until one side closes, then close both."""
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
