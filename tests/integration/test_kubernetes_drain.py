"""A real worker in a pod finishes its batch if it is evicted, but not if its node goes away."""

import platform
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagefleet import Client
from imagefleet.shared.jobs.model import State
from tests.support.kubernetes_api import KubernetesApi
from tests.support.processes import StartWorker, Worker, until

POD_WORKER = ("-m", "tests.support.pod_worker")
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 3600}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    folder = tmp_path / "service-account"
    folder.mkdir()
    with KubernetesApi(folder) as server:
        yield server


def _stop_while_it_works(
    start: StartWorker, producer: Client, api: KubernetesApi, metadata: dict[str, Any], steps: int
) -> tuple[Worker, State]:
    """Return a worker that was sent SIGTERM with a job on its devices, and how that job ended."""
    api.pods[platform.node()] = {"metadata": metadata}
    worker = start(
        *POD_WORKER,
        **api.environment(),
        IMAGEFLEET_MODEL="fake:seconds=0.3",
        IMAGEFLEET_DRAIN_S="3600",
        IMAGEFLEET_PREEMPTED_DRAIN_S="0",
    )
    job = producer.submit("x", num_inference_steps=steps)
    until(lambda: job.status().step)
    assert worker.terminate() == 0
    return worker, job.status().state


def test_an_evicted_worker_finishes_its_batch(
    start: StartWorker, producer: Client, api: KubernetesApi
) -> None:
    _, state = _stop_while_it_works(start, producer, api, DELETED, steps=20)
    assert state is State.SUCCEEDED
    assert api.requests == [("GET", platform.node())]


def test_a_drain_ends_before_the_grace_period_of_the_pod(
    start: StartWorker, producer: Client, api: KubernetesApi
) -> None:
    short = {**DELETED, "deletionGracePeriodSeconds": 10}
    _, state = _stop_while_it_works(start, producer, api, short, steps=100)
    assert state is State.QUEUED


def test_a_worker_whose_node_goes_away_requeues_its_batch(
    start: StartWorker, producer: Client, api: KubernetesApi
) -> None:
    worker, state = _stop_while_it_works(start, producer, api, {}, steps=100)
    assert state is State.QUEUED
    assert "its host goes away" in worker.output()


def test_a_worker_that_is_told_nothing_expects_the_worst(
    start: StartWorker, producer: Client, api: KubernetesApi
) -> None:
    api.hanging = threading.Event()
    worker, state = _stop_while_it_works(start, producer, api, DELETED, steps=100)
    api.hanging.set()
    assert state is State.QUEUED
    assert "why this pod is stopped is unknown" in worker.output()


def test_a_worker_without_the_right_to_read_its_pod_drains_as_it_was_told(
    start: StartWorker, producer: Client, api: KubernetesApi
) -> None:
    (api.service_account / "token").write_text("another")
    worker, state = _stop_while_it_works(start, producer, api, {}, steps=20)
    assert state is State.SUCCEEDED
    assert "let the service account get pods" in worker.output()


def test_an_operator_who_drains_a_worker_lets_it_finish(
    start: StartWorker, producer: Client, api: KubernetesApi
) -> None:
    api.pods[platform.node()] = {"metadata": {}}
    worker = start(
        *POD_WORKER,
        **api.environment(),
        IMAGEFLEET_MODEL="fake:seconds=0.3",
        IMAGEFLEET_DRAIN_S="3600",
        IMAGEFLEET_PREEMPTED_DRAIN_S="0",
        IMAGEFLEET_LEASE_S="2",
    )
    job = producer.submit("x", num_inference_steps=30)
    until(lambda: job.status().step)
    producer.fleet.workers.request_drain(producer.fleet.workers.alive())
    assert worker.wait() == 0
    assert job.status().state is State.SUCCEEDED
    assert api.requests == []
