"""A worker with several models, and real processes for each of them."""

import os
import signal
from pathlib import Path

import pytest
import redis

from imagefleet import Client
from imagefleet.shared.jobs.worker_status import WorkerState
from tests.support.processes import StartWorker, Worker, until

SEVERAL = {
    "IMAGEFLEET_MODELS": "fake:name=a,seconds=0.02 fake:name=b,seconds=0.02",
    "IMAGEFLEET_MODEL_MIN_STAY_S": "0",
    "IMAGEFLEET_MODEL_MAX_WAIT_S": "0",
}


@pytest.fixture
def settings(settings: dict[str, str]) -> dict[str, str]:
    return {name: each for name, each in settings.items() if name != "IMAGEFLEET_MODEL"}


def _ready(producer: Client) -> list[tuple[str, int]]:
    """Return model and process id of the workers that are ready."""
    workers = producer.fleet.read().workers
    return [
        (each.model, int(each.worker.split(":")[1]))
        for each in workers
        if each.state is WorkerState.READY
    ]


def _await_first_pass(producer: Client) -> None:
    """Wait until every model was loaded once."""
    until(lambda: producer.offers().keys() >= {"a", "b"} and _ready(producer))


def test_jobs_of_every_model_are_made_and_one_model_at_a_time_is_loaded(
    start: StartWorker, producer: Client
) -> None:
    worker = start(**SEVERAL)
    _await_first_pass(producer)
    pids = set()
    for model in ("b", "a", "b", "a"):
        jobs = producer.submit_many(["x", "y"], model=model)
        assert {job.result(timeout=300).model for job in jobs} == {model}
        [(ready, pid)] = until(lambda: _ready(producer))
        assert ready == model
        pids.add(pid)
    assert len(pids) == 4
    assert worker.terminate() == 0
    assert not any(_runs(pid) for pid in pids)
    assert producer.fleet.read().workers == ()


def test_jobs_that_name_no_model_get_the_first(start: StartWorker, producer: Client) -> None:
    start(**SEVERAL)
    _await_first_pass(producer)
    assert producer.submit("x", model="b").result(timeout=300).model == "b"
    assert producer.submit("x").result(timeout=300).model == "a"


def test_work_in_flight_is_finished_before_a_switch(start: StartWorker, producer: Client) -> None:
    start(**SEVERAL, IMAGEFLEET_DRAIN_S="60")
    _await_first_pass(producer)
    slow = producer.submit("x", model="a", num_inference_steps=100)
    until(lambda: slow.status().started_at)
    assert producer.submit("x", model="b").result(timeout=300).model == "b"
    status = slow.status()
    assert (status.state, status.deliveries) == ("succeeded", 1)


def test_a_worker_that_dies_ends_the_process_with_its_code(
    start: StartWorker, producer: Client
) -> None:
    worker = start(**SEVERAL)
    _await_first_pass(producer)
    [(_, pid)] = until(lambda: _ready(producer))
    os.kill(pid, signal.SIGKILL)
    assert worker.wait() == 128 + signal.SIGKILL


def test_another_worker_that_switches_to_a_model_keeps_this_one_back(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    start(**SEVERAL)
    _await_first_pass(producer)
    client.set(f"{namespace}:model-switch:b", "another")
    job = producer.submit("x", model="b")
    assert producer.submit("x", model="a").result(timeout=300).model == "a"
    assert job.status().state == "queued"
    client.delete(f"{namespace}:model-switch:b")
    assert job.result(timeout=300).model == "b"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        pytest.param({"IMAGEFLEET_MODEL": "fake"}, "IMAGEFLEET_MODEL too", id="model and models"),
        pytest.param({"IMAGEFLEET_MODELS": "fake"}, "two models or more", id="one"),
        pytest.param({"IMAGEFLEET_MODELS": "fake fake"}, "each once", id="twice"),
        pytest.param({"IMAGEFLEET_LORA": "a=/a.safetensors"}, "fits one model", id="lora"),
        pytest.param(
            {"IMAGEFLEET_MODELS": "fake:capacity=8 fake:capacity=4"}, "both called", id="one name"
        ),
    ],
)
def test_what_cannot_be_served_is_refused(
    start: StartWorker, more: dict[str, str], sentence: str
) -> None:
    worker: Worker = start(**{**SEVERAL, **more})
    assert worker.wait() == 78
    assert sentence in worker.output()


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
