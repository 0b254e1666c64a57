"""Run two gateways in a chaos run, each at its own port, and start them again after each kill."""

import os
import random
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from imagefleet.shared.process.child_process import die_with_parent
from tests.support.ports import reserved_port

URLS: Final = "CHAOS_GATEWAYS"
"""The variable with which producers learn the addresses, separated by blanks."""
_COUNT: Final = 2


class Gateways:
    """The gateways of one fleet."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = {**os.environ, **environment}
        self._folder = folder
        self._stack = ExitStack()
        self._ports = [self._stack.enter_context(reserved_port()) for _ in range(_COUNT)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The variables that producers need."""
        return {URLS: " ".join(f"http://127.0.0.1:{port}" for port in self._ports)}

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        self.refill()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._stack.close()

    def refill(self) -> None:
        """Start each gateway that does not run. It may have ended because Redis was away."""
        for port in self._ports:
            process = self._processes.get(port)
            if process is None or process.poll() is not None:
                self._processes[port] = self._start(port)

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        with (self._folder / f"{port}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "imagefleet.producer", "serve", "--port", str(port)],
                env=self._environment,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(),
            )

    def kill(self, rng: random.Random) -> bool:
        """Kill one of them with SIGKILL, if it runs. Return whether it did."""
        process = self._processes[rng.choice(self._ports)]
        if process.poll() is not None:
            return False
        process.kill()
        process.wait()
        return True
