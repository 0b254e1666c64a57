"""Worker processes for tests."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from tests.support import forked

T = TypeVar("T")

ROOT: Final = forked.ROOT


PATIENT: Final = ("-m", "tests.support.patient_worker")
"""The command of a worker that may take its time to quit."""


class Worker:
    """A worker process of a test. It runs `imagefleet-worker` unless `command` is given."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        command: Sequence[str] = ("-m", "imagefleet.worker"),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"worker-{time.monotonic_ns()}.log"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("IMAGEFLEET_")}
        with self.log.open("wb") as log:
            self.process = forked.start(command, {**inherited, **environment}, output=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stop the process with SIGSTOP, and return once it does not run any more."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self, timeout_s: float = 900) -> int:
        self.process.terminate()
        return self.process.wait(timeout_s)

    def wait(self, timeout_s: float = 900) -> int:
        return self.process.wait(timeout_s)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def await_log(self, text: str, timeout_s: float = 900) -> None:
        until(lambda: text in self.output() or self.process.poll() is not None, timeout_s)
        assert text in self.output(), self.output()[-3000:]


StartWorker = Callable[..., Worker]
"""`start(*command, **settings)`: a worker process that ends with its test."""


def until(found: Callable[[], T | None], timeout_s: float = 900) -> T:
    """Poll until `found` returns a true value, and return it.

    Raises:
        AssertionError: `timeout_s` passed first.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = found()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.02)
