"""Start the commands of the package in forks of a process that has imported them already.

`start` is for tests, which start hundreds of workers, gateways and commands. Where a fork could
differ from a new process, it starts a new process: for programs that nothing is prepared for, and
with variables that a package may read while it is imported. It also does where a fork cannot be
waited for: on other systems than Linux, and on a Linux without `pidfd_open`.
"""

import atexit
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, Protocol

from tests.support.prepared_process import PRODUCER, WORKER, Request

ROOT: Final = Path(__file__).parents[2]
_PREPARED_FOR: Final = {
    WORKER: WORKER,
    PRODUCER: PRODUCER,
    "tests.support.patient_worker": WORKER,
}
"""By module that a fork may run: the command whose imports it needs."""
_ENVIRONMENT: Final = dict(os.environ)
"""The variables of a prepared process."""
_OWN: Final = ("AWS_", "IMAGEFLEET_", "PYTEST_", "TF_CPP_MIN_LOG_LEVEL", "TPU_SKIP_MDS_QUERY")
"""Only variables with these beginnings may differ in a fork: nothing reads them at an import. JAX
sets the last two in the process of a test that imports it, and prepared processes have no JAX."""
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}
_PREPARED_PROGRAM: Final = ("-m", "tests.support.prepared_process")
_PR_SET_CHILD_SUBREAPER: Final = 36


class Process(Protocol):
    """What tests use of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class _ForkedProcess:
    """A child of this process."""

    def __init__(self, pid: int, module: str) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._module = module
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raise `subprocess.TimeoutExpired` if it has not ended after so many seconds."""
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            try:
                poll = select.poll()  # `select.select` takes no descriptors above 1,023
                poll.register(ended, select.POLLIN)
                if not poll.poll(None if timeout is None else 1000 * timeout):
                    raise subprocess.TimeoutExpired(self._module, timeout or 0)
            finally:
                os.close(ended)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Prepared:
    """A process that has imported a command, and forks."""

    _lock: Final = threading.Lock()
    _of_commands: Final[dict[str, "_Prepared"]] = {}

    def __init__(self, command: str, program: Sequence[str] = _PREPARED_PROGRAM) -> None:
        self._command = command
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other, Path(os.devnull).open("w") as nowhere:
            self._process = subprocess.Popen(
                [sys.executable, *program, command, str(other.fileno())],
                cwd=ROOT,
                env={**_ENVIRONMENT, **_ONE_THREAD},
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=nowhere,
            )
        assert self._control.recv(10) == b"ready", f"{command} cannot be prepared"

    @classmethod
    def of(cls, command: str) -> "_Prepared":
        """Return that of a command. It starts at the first call, and ends with this process."""
        with cls._lock:
            if command not in cls._of_commands:
                cls._of_commands[command] = cls(command)
                atexit.register(cls._of_commands[command]._end)
            return cls._of_commands[command]

    def fork(self, request: Request, files: Sequence[int]) -> _ForkedProcess:
        """Return a process that runs the request, with its standard input, output and errors."""
        with self._lock:
            _adopt_orphans(True)
            try:
                pid = self._ask(request, files)
                return _ForkedProcess(pid, request.module)
            finally:
                _adopt_orphans(False)

    def _ask(self, request: Request, files: Sequence[int]) -> int:
        """Return the number of the process that was forked for a request."""
        answer = b""
        with suppress(ConnectionError):
            socket.send_fds(self._control, [request.to_bytes()], files)
            answer = self._control.recv(20)
        assert answer, (
            f"the process prepared for {self._command} forked none for {request.module}: standard "
            f"error has the reason; its exit status is {self._process.poll()} (None: it runs)"
        )
        return int(answer)

    def _end(self) -> None:
        self._control.close()
        self._process.wait()


def _adopt_orphans(adopt: bool) -> None:
    """Become, or be no more, the parent of processes below this one whose parent ends."""
    failed = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)
    assert not failed


def start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: IO[bytes],
    errors: IO[bytes] | None = None,
    stdin: IO[bytes] | None = None,
    folder: Path = ROOT,
) -> Process:
    """Start Python with these arguments and no other variables than these.

    `errors` go to `output`, and nothing can be read from `stdin`, unless they are given.
    """
    if not _may_be_forked(arguments, environment):
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=errors or output,
            stdin=stdin or subprocess.DEVNULL,
        )
    _, module, *rest = arguments
    request = Request(
        module=module, arguments=rest, environment=dict(environment), folder=str(folder)
    )
    with Path(os.devnull).open("rb") as nothing:
        files = (stdin or nothing, output, errors or output)
        return _Prepared.of(_PREPARED_FOR[module]).fork(request, [each.fileno() for each in files])


def _may_be_forked(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    foreign = [
        {name: value for name, value in each.items() if not name.startswith(_OWN)}
        for each in (environment, _ENVIRONMENT)
    ]
    return (
        has_forks()
        and arguments[0] == "-m"
        and arguments[1] in _PREPARED_FOR
        and foreign[0] == foreign[1]
    )


@cache
def has_forks() -> bool:
    """Return whether this system can wait for a fork by a descriptor. Linux before 5.3 cannot, some
    sandboxes refuse it, and a Python may lack the call."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def run(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    folder: Path = ROOT,
) -> "subprocess.CompletedProcess[str]":
    """Run Python to its end. `environment` are variables beside those of this process."""
    with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
        given.write(stdin.encode(errors="surrogateescape"))
        given.seek(0)
        process = start(
            arguments,
            {**os.environ, **(environment or {})},
            output=output,
            errors=errors,
            stdin=given,
            folder=folder,
        )
        code = process.wait()
        return subprocess.CompletedProcess(list(arguments), code, _text(output), _text(errors))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="surrogateescape")
