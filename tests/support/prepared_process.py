"""Fork a process that has imported what the commands import, in place of starting Python anew.

`python -m tests.support.prepared_process MODULE FD` imports the packages of a command, and then
waits for requests on the socket FD. For each it forks a process that runs the command's module as
`python -m` does. Importing is nearly all that a worker with the fake engine and a gateway compute,
and tests start hundreds. `tests/support/forked.py` sends the requests.

It never imports JAX, which must not be forked, and has one thread.
"""

import gc
import json
import os
import runpy
import socket
import sys
import threading
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Final

WORKER: Final = "imagefleet.worker"
PRODUCER: Final = "imagefleet.producer"
IMPORTED: Final = {
    WORKER: (
        *(f"{WORKER}.{name}" for name in ("commands.cli", "startup.lifecycle")),
        *(f"{WORKER}.celery_app.{name}" for name in ("bootsteps", "command", "json_output")),
        *("celery.apps.worker", "celery.backends.redis", "celery.bin.celery"),
        *("celery.fixups.django", "celery.loaders.app", "celery.worker.autoscale"),
        *("celery.worker.consumer.delayed_delivery", "celery.worker.strategy"),
        *("billiard.dummy", "kombu.pidbox", "kombu.transport.redis"),
    ),
    PRODUCER: (f"{PRODUCER}.commands.cli", f"{PRODUCER}.gateway.serve", f"{PRODUCER}.gateway.app"),
}
"""By command: the modules that it imports in any case. Importing them does nothing else."""
_LONGEST: Final = 1 << 20
"""The most bytes of a request."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a forked process runs."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str

    def to_bytes(self) -> bytes:
        """Return the request as a message."""
        return json.dumps(asdict(self)).encode()


def _await_request(control: socket.socket) -> Request:
    """Fork for each request. Return it in the forked process, and end this one when none comes."""
    while True:
        message, files, _, _ = socket.recv_fds(control, _LONGEST, 3)
        if not message:
            sys.exit()
        mine, of_fork = os.pipe()
        if not (between := os.fork()):
            if child := os.fork():
                os.write(of_fork, str(child).encode())
                os._exit(0)
            control.close()
            _take_files(files)
            os.close(mine)
            os.close(of_fork)
            return Request(**json.loads(message))
        os.close(of_fork)  # so that the read below ends if the process between has failed
        os.waitpid(between, 0)  # its child has the process of the test as parent from now on
        control.send(os.read(mine, 20))
        for each in (mine, *files):
            os.close(each)


def _take_files(files: list[int]) -> None:
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)


def _become(request: Request) -> None:
    """Run the module of the request with its arguments, variables and folder."""
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    sys.path[0] = request.folder
    sys.argv[1:] = request.arguments
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Import, and run what the requests name, each in a process of its own."""
    imported, descriptor = sys.argv[1:]
    for name in IMPORTED[imported]:
        import_module(name)
    assert "jax" not in sys.modules
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=int(descriptor))
    control.send(b"ready")
    _become(_await_request(control))


if __name__ == "__main__":
    main()
