"""Each signal that stops a worker does what the documents say, without a traceback."""

import signal
from collections.abc import Sequence
from functools import partial

import pytest

from imagefleet import Client, State
from tests.support.processes import StartWorker, Worker, until

_DRAINS = (State.SUCCEEDED, State.QUEUED)
_REQUEUES = (State.QUEUED, State.QUEUED)


@pytest.mark.parametrize(
    ("signals", "exit_code", "states"),
    [
        ([signal.SIGTERM], 0, _DRAINS),
        ([signal.SIGINT], 0, _DRAINS),
        ([signal.SIGHUP], 0, _DRAINS),
        ([signal.SIGQUIT], 75, _REQUEUES),
        ([signal.SIGINT, signal.SIGINT], 75, _REQUEUES),
        ([signal.SIGTERM, signal.SIGQUIT], 75, _REQUEUES),
    ],
)
def test_a_signal_drains_or_requeues(
    start: StartWorker,
    producer: Client,
    signals: Sequence[signal.Signals],
    exit_code: int,
    states: Sequence[State],
) -> None:
    drains = states is _DRAINS
    s_per_step = "1" if drains else "60"
    worker = start(IMAGEFLEET_MODEL=f"fake:seconds={s_per_step},capacity=1")
    worker.await_log("ready after")
    first = producer.submit("a", num_inference_steps=4)
    # A running job that is not on the devices yet is requeued, too.
    until(lambda: first.status().step if drains else first.status().state is State.RUNNING)
    second = producer.submit("b", num_inference_steps=4)
    _send(worker, signals)
    assert worker.wait() == exit_code, worker.output()
    assert [job.status().state for job in (first, second)] == list(states)
    assert "Traceback" not in worker.output()


def _send(worker: Worker, signals: Sequence[signal.Signals]) -> None:
    """Send signals one after the other; two of one kind at once would be one."""
    for number, each in enumerate(signals):
        worker.process.send_signal(each)
        if each is not signal.SIGQUIT:
            until(partial(_is_seen, worker, number + 1))


def _is_seen(worker: Worker, times: int) -> bool:
    return worker.output().count("Warm shutdown") >= times or worker.process.poll() is not None


def test_a_worker_outlives_its_terminal_if_it_was_started_so(
    start: StartWorker, producer: Client
) -> None:
    program = "import signal, runpy; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    program += "runpy.run_module('imagefleet.worker', run_name='__main__')"
    worker = start("-c", program)
    worker.await_log("ready after")
    worker.process.send_signal(signal.SIGHUP)
    producer.submit("a").result(300)
    assert worker.terminate() == 0
