"""The worker processes of a chaos run: `Fleet` keeps their number constant.

They are forked from one process that has imported everything and has read no setting. A worker
lives for about eight seconds, and imports would take two of them.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from imagefleet.worker.engine.fake.fake_engine import KILLED
from imagefleet.worker.process.exit_codes import ExitCode

_STOP_TIMEOUT_S: Final = 120.0
"""Seconds to wait after SIGTERM before SIGKILL. It exceeds the workers' own drain time."""

_READY: Final = "ready after"
"""In the log of a worker whose start is complete."""

Main = Callable[[], None]
"""What a worker process runs. It must be a module's function, so that the new process can import
it."""


def run_worker() -> None:
    """Run `imagefleet-worker` without flags."""
    from imagefleet.worker.commands.cli import main

    main(args=[], prog_name="imagefleet-worker")


class Fleet:
    """A fleet starts a worker for each one that ended.

    A worker that was stopped with SIGSTOP counts as alive, because it still holds its jobs.
    """

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
        self.ended: list[Worker] = []
        """Workers that ended and were replaced."""
        self.started = 0

    def __enter__(self) -> Self:
        self.refill()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()

    def pids(self) -> set[int]:
        """Return the process ids of the workers."""
        return {worker.pid for worker in self.workers}

    def refill(self) -> None:
        """Continue frozen workers whose time is over, and replace workers that ended."""
        now = time.monotonic()
        for until, worker in list(self.frozen):
            if now >= until:
                worker.thaw()
                self.frozen.remove((until, worker))
        alive = [worker for worker in self.workers if worker.alive]
        self.ended += [worker for worker in self.workers if worker not in alive]
        self.workers = alive
        while len(self.workers) < self._size:
            self.started += 1
            log = self._folder / f"worker-{self.started}.log"
            self.workers.append(Worker(self._context, self._main, self._environment, log))

    def freeze(self, worker: "Worker", seconds: float) -> None:
        """Stop a worker with SIGSTOP; `refill` continues it after `seconds`."""
        worker.freeze()
        self.frozen.append((time.monotonic() + seconds, worker))

    def note_outage(self) -> None:
        """Note that Redis was killed: a worker that has just started may end for it."""
        for worker in self.workers:
            worker.met_outage = True

    def not_frozen(self) -> list["Worker"]:
        frozen = [worker for _, worker in self.frozen]
        return [worker for worker in self.workers if worker not in frozen]

    def thaw_all(self) -> None:
        self.frozen = [(0.0, worker) for _, worker in self.frozen]
        self.refill()

    def replace_all(self, drain_s: float) -> None:
        """Send SIGTERM to all workers. Their successors get `drain_s` seconds to drain."""
        self._environment = {**self._environment, "IMAGEFLEET_DRAIN_S": str(drain_s)}
        for worker in self.workers:
            worker.terminate()

    @property
    def any_stopping(self) -> bool:
        """Whether a worker that got SIGTERM still runs."""
        return any(worker.stopping for worker in self.workers)

    def stop(self) -> list[int]:
        """Send SIGTERM to all workers, and return their exit codes."""
        for worker in self.workers:
            worker.terminate()
        codes = [worker.wait(_STOP_TIMEOUT_S) for worker in self.workers]
        self.workers = []
        return codes


class Worker:
    """One worker process."""

    def __init__(
        self,
        context: multiprocessing.context.ForkServerContext,
        main: Main,
        environment: dict[str, str],
        log: Path,
    ) -> None:
        self.killed = False
        """Whether it got SIGKILL."""
        self.met_outage = False
        """Whether it lived when Redis was killed."""
        self.stopping = False
        """Whether it got SIGTERM. It may end before it installs its handler."""
        log.touch()  # a signal may end the process before it opens its log
        self.log = log
        self._process = context.Process(
            target=_run_in_child, args=(main, environment, log), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, "not started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    @property
    def exit_code(self) -> int:
        """The exit code of a worker that ended, negative for a signal."""
        assert self._process.exitcode is not None, "not ended"
        return self._process.exitcode

    def fault(self) -> str | None:
        """Return the injected fault that ended this worker; None if none did."""
        if self.exit_code == -signal.SIGKILL:
            if self.killed:
                return "kill -9"
            return "a prompt" if KILLED in self._read_log() else None
        began = _READY in self._read_log()
        if self.exit_code == ExitCode.TEMPFAIL and self.met_outage and not began:
            return "an outage of Redis at its start"
        ends_after_sigterm = (0, ExitCode.TEMPFAIL, -signal.SIGTERM)
        return "SIGTERM" if self.stopping and self.exit_code in ends_after_sigterm else None

    def __str__(self) -> str:
        lines = self._read_log().splitlines()
        return f"{self.log.stem}, exit code {self.exit_code}, last words {lines[-1:]}"

    def kill(self) -> None:
        self.killed = True
        self._process.kill()
        self._process.join()

    def terminate(self) -> None:
        self.stopping = True
        self._process.terminate()

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def wait(self, timeout_s: float) -> int:
        """Return the exit code, negative for a signal. Send SIGKILL after `timeout_s`."""
        self._process.join(timeout_s)
        if self.alive:
            self.kill()
        return self.exit_code

    def _read_log(self) -> str:
        return self.log.read_text(errors="replace")

    def _send(self, number: int) -> None:
        if self.alive:
            with suppress(ProcessLookupError):  # the process may die after the check
                os.kill(self.pid, number)


def _run_in_child(main: Main, environment: dict[str, str], log: Path) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.environ.update(environment)
    with log.open("wb") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    main()


def _exit_with_parent() -> None:
    """End with the parent process, even if that was killed and could not clean up."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
