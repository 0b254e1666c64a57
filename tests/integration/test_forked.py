"""Processes that tests fork from a prepared one do what new processes do."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from imagefleet import Client
from tests.support import forked
from tests.support.gateway import start_gateway
from tests.support.prepared_process import WORKER as OF_WORKER
from tests.support.prepared_process import Request
from tests.support.processes import ROOT, StartWorker, Worker

PRODUCER = ("-m", "imagefleet.producer")
WORKER = ("-m", "imagefleet.worker")
NEEDS_FORKS = pytest.mark.skipif(not forked.has_forks(), reason="this system has no pidfd_open")
OF_NO_PACKAGE = {"VARIABLE_OF_NO_PACKAGE": "1"}
"""It makes a new process, as every variable that the process of the tests does not have."""
OF_JAX = {"TF_CPP_MIN_LOG_LEVEL": "1", "TPU_SKIP_MDS_QUERY": "1"}
UNABLE = """
import os
from tests.support import prepared_process

def fork_once():
    os.fork = None
    return fork()

fork, os.fork = os.fork, fork_once
prepared_process.main()
"""
"""A prepared process whose first child cannot fork."""


@pytest.mark.parametrize(
    "arguments",
    [
        (*PRODUCER, "submit", "--help"),
        (*PRODUCER, "submit", "-", "--guidance-scale", "x"),
        (*PRODUCER, "status", "a", "--redis-url", "redis://127.0.0.1:1/0"),
        (*WORKER, "--version"),
        (*WORKER, "--model", "fake:seconds=x"),
        (*WORKER, "--nonsense"),
    ],
)
def test_a_fork_prints_and_ends_as_a_new_process(arguments: tuple[str, ...]) -> None:
    new = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, input=""
    )
    fork = forked.run(*arguments)
    assert (fork.returncode, fork.stdout, fork.stderr) == (new.returncode, new.stdout, new.stderr)


def test_a_new_worker_and_gateway_make_the_images_and_the_document_that_forks_make(
    start: StartWorker, producer: Client
) -> None:
    """Most workers and gateways of tests are forks."""
    made = []
    for variables, is_fork in ((OF_NO_PACKAGE, False), (OF_JAX, forked.has_forks())):
        worker = start(**variables)
        (image,) = producer.submit("a red star", seed=7).result(timeout=900).images
        gateway = start_gateway(start, **variables)
        document = httpx.get(f"{gateway.url}/openapi.json").json()
        processes = (worker, gateway.process)
        for process in processes:
            assert (b"prepared_process" in _command_line(process)) is is_fork
        statuses = [process.terminate() for process in processes]
        made.append((statuses, document, image.open().tobytes()))
    of_new, of_forks = made
    assert of_new == of_forks
    assert of_new[0][0] == 0


def _command_line(worker: Worker) -> bytes:
    return Path(f"/proc/{worker.process.pid}/cmdline").read_bytes()


def test_a_fork_has_its_own_variables_folder_and_input(
    settings: dict[str, str], producer: Client, tmp_path: Path
) -> None:
    command = (*PRODUCER, "bulk", "run", "--no-wait", "prompts.txt", "made", "--shard-size", "1")
    (tmp_path / "prompts.txt").write_text("a\nb")
    planned = forked.run(*command, environment=settings, folder=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert (tmp_path / "made").is_dir()
    sent = forked.run(*PRODUCER, "submit", "-", environment=settings, stdin="a red star\nb\n")
    jobs = [producer.get(job_id) for job_id in sent.stdout.split()]
    assert [job.status().request.prompt for job in jobs] == ["a red star", "b"]


@NEEDS_FORKS
def test_a_fork_is_a_child_that_can_be_stopped_killed_and_waited_for(start: StartWorker) -> None:
    worker = start()
    worker.await_log("ready after")
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(timeout_s=0)
    worker.freeze()
    worker.thaw()
    worker.kill()
    assert worker.process.returncode == worker.process.poll() == -signal.SIGKILL
    worker.process.terminate()  # nothing has its number now


@NEEDS_FORKS
def test_a_fork_can_be_waited_for_by_a_descriptor_above_1023(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_process = os.pidfd_open

    def high(pid: int) -> int:
        low = of_process(pid)
        try:
            return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1100)
        finally:
            os.close(low)

    with _files_allowed(1200):
        monkeypatch.setattr(os, "pidfd_open", high)
        assert forked.run(*WORKER, "--version").returncode == 0


@contextmanager
def _files_allowed(files: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, before[0]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@NEEDS_FORKS
def test_a_process_is_new_where_a_fork_could_not_be_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int) -> int:
        raise PermissionError(pid)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pidfd_open", refuse)
        forked.has_forks.cache_clear()
        with Path(os.devnull).open("wb") as output:
            process = forked.start([*WORKER, "--version"], os.environ, output=output)
        assert process.wait(900) == 0
    forked.has_forks.cache_clear()
    assert isinstance(process, subprocess.Popen)


@NEEDS_FORKS
def test_a_prepared_process_that_forks_no_more_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    """The first has ended, and a child of the other fails before it has forked."""
    request = Request(module="a.module", arguments=[], environment={}, folder=".")
    ended = forked._Prepared(OF_WORKER)
    ended._process.kill()
    ended._process.wait()
    unable = forked._Prepared(OF_WORKER, ("-c", UNABLE))
    for prepared, status in ((ended, "-9"), (unable, "None")):
        message = f"imagefleet.worker forked none for a.module: .* exit status is {status} "
        with pytest.raises(AssertionError, match=message):
            prepared.fork(request, [0, 1, 2])
        prepared._end()
    assert "'NoneType' object is not callable" in capfd.readouterr().err
