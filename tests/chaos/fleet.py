"""The worker processes of a chaos run: as many as were wanted, whatever is done to them.

They are forked from one process that has imported everything but read no setting. A worker that
lives for eight seconds cannot spend two of them on imports.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_HASTE_S: Final = 120.0
"""Longest wait for workers that were told to stop in peace: longer than they wait themselves."""

Main = Callable[[], None]
"""What a worker process runs. Of a module, so that the new process finds it."""


def our_worker() -> None:
    """`imagefleet-worker`, without flags."""
    from imagefleet.worker.cli import main

    main(args=[], prog_name="imagefleet-worker")


class Fleet:
    """Starts a worker for each that ended. Frozen ones count as living: they hold their jobs."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        *,
        size: int,
        main: Main,
        imports: Sequence[str],
    ) -> None:
        folder.mkdir(parents=True)
        self._folder, self._environment = folder, environment
        self._size, self._main = size, main
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(imports))
        self.workers: list[Worker] = []
        self.frozen: list[tuple[float, Worker]] = []
        self.started = 0

    def __enter__(self) -> Self:
        self.fill()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.kill()

    def fill(self) -> None:
        """Bury the dead, thaw who was frozen for long enough, start others for those who left."""
        now = time.monotonic()
        for until, worker in list(self.frozen):
            if now >= until:
                worker.thaw()
                self.frozen.remove((until, worker))
        self.workers = [worker for worker in self.workers if worker.alive]
        while len(self.workers) < self._size:
            self.started += 1
            log = self._folder / f"worker-{self.started}.log"
            self.workers.append(Worker(self._context, self._main, self._environment, log))

    def freeze(self, worker: "Worker", seconds: float) -> None:
        worker.freeze()
        self.frozen.append((time.monotonic() + seconds, worker))

    def awake(self) -> list["Worker"]:
        asleep = [worker for _, worker in self.frozen]
        return [worker for worker in self.workers if worker not in asleep]

    def thaw_all(self) -> None:
        self.frozen = [(0.0, worker) for _, worker in self.frozen]
        self.fill()

    def relieve(self, drain_s: float) -> None:
        """Tell all to leave; those who follow them get `drain_s` for the same."""
        self._environment = {**self._environment, "IMAGEFLEET_DRAIN_S": str(drain_s)}
        for worker in self.workers:
            worker.terminate()

    @property
    def leaving(self) -> bool:
        """Whether somebody who was told to leave is still here."""
        return any(worker.told for worker in self.workers)

    def stop(self) -> list[int]:
        """SIGTERM to all; their exit codes."""
        for worker in self.workers:
            worker.terminate()
        codes = [worker.wait(_HASTE_S) for worker in self.workers]
        self.workers = []
        return codes


class Worker:
    """One process."""

    def __init__(
        self,
        context: multiprocessing.context.ForkServerContext,
        main: Main,
        environment: dict[str, str],
        log: Path,
    ) -> None:
        self.told = False
        """To leave."""
        self._process = context.Process(target=_live, args=(main, environment, log), daemon=True)
        self._process.start()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def terminate(self) -> None:
        self.told = True
        self._process.terminate()

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def wait(self, timeout_s: float) -> int:
        """Its exit code; negative for a signal, and SIGKILL after `timeout_s`."""
        self._process.join(timeout_s)
        if self.alive:
            self.kill()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def _send(self, number: int) -> None:
        if self.alive:
            assert self._process.pid is not None
            with suppress(ProcessLookupError):  # it died a moment ago
                os.kill(self._process.pid, number)


def _live(main: Main, environment: dict[str, str], log: Path) -> None:
    threading.Thread(target=_leave_with_the_suite, daemon=True).start()
    os.environ.update(environment)
    with log.open("wb") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    main()


def _leave_with_the_suite() -> None:
    """Also if that was killed and could not clean up."""
    suite = multiprocessing.parent_process()
    assert suite is not None
    suite.join()
    os._exit(1)
