"""Worker processes for tests."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from tests.support import forked
from tests.support.settings import other_variables

T = TypeVar("T")

ROOT: Final = forked.ROOT


COMMAND: Final = ("-m", "imagefleet.worker")
PATIENT: Final = ("-m", "tests.support.patient_worker")
"""The command of a worker that may take its time to quit."""


class Worker:
    """A worker process of a test. It runs `imagefleet-worker` unless `command` is given."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        command: Sequence[str] = COMMAND,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"worker-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = forked.start(command, {**other_variables(), **environment}, output=log)

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


@contextmanager
def worker_processes(folder: Path, settings: Mapping[str, str]) -> Iterator[StartWorker]:
    """Yield a function that starts workers, or other commands, with these settings and more.

    The processes end with the block, and the ends of their logs are printed.
    """
    started: list[Worker] = []

    def start(*command: str, **more: str) -> Worker:
        worker = Worker(folder, {**settings, **more}, command or COMMAND)
        started.append(worker)
        return worker

    try:
        yield start
    finally:
        for worker in started:
            worker.kill()
            print(worker.log.name, worker.output()[-3000:])  # pytest shows it if the test failed


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
