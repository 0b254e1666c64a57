"""Processes that tests fork from a prepared one do what new processes do."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from imagefleet import Client
from tests.support import forked
from tests.support.processes import ROOT, StartWorker, Worker

PRODUCER = ("-m", "imagefleet.producer")
WORKER = ("-m", "imagefleet.worker")


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


def test_a_new_worker_process_makes_images_as_a_fork_does(
    start: StartWorker, producer: Client
) -> None:
    """Most workers of tests are forks. A variable that is not ours makes this one a new process."""
    of_jax = {"TF_CPP_MIN_LOG_LEVEL": "1", "TPU_SKIP_MDS_QUERY": "1"}
    for more, is_fork in (({"OMP_NUM_THREADS": "1"}, False), (of_jax, True)):
        worker = start(**more)
        assert producer.submit("a red star").result(timeout=900).images
        assert (b"prepared_process" in _command_line(worker)) is is_fork
        assert worker.terminate() == 0


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
