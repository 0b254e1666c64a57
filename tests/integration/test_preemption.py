"""A real worker on a host that is preempted, or whose platform gives no usable answer."""

import socket
import threading
from collections.abc import Iterator

import pytest
import redis

from imagefleet import Client
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key
from tests.support.image_server import stalled, status
from tests.support.jobs import finish
from tests.support.metadata_server import MetadataServer, Respond
from tests.support.processes import PATIENT, StartWorker, until

ENDLESS = "fake:seconds=60,capacity=2"
"""A model whose steps take longer than any test."""


@pytest.fixture
def platform() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        yield server


def test_jobs_of_a_preempted_host_are_requeued_and_run_elsewhere(
    start: StartWorker,
    producer: Client,
    platform: MetadataServer,
    client: redis.Redis,
    namespace: str,
) -> None:
    first = start(
        *PATIENT,
        IMAGEFLEET_MODEL=ENDLESS,
        IMAGEFLEET_PREEMPTED_DRAIN_S="0.5",
        IMAGEFLEET_DRAIN_S="3600",
        IMAGEFLEET_PREEMPTION_URL=platform.url,
    )
    jobs = producer.submit_many(["a", "b", "c"])
    until(lambda: [job.status().state for job in jobs].count(State.RUNNING) == 2)
    platform.preempt()
    assert first.wait() == 0
    assert "about to take this host away" in first.output()
    assert {job.status().state for job in jobs} == {State.QUEUED}
    assert not client.keys(f"{namespace}:claims:*")
    start()
    assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in jobs} == {1}


def test_a_large_batch_is_requeued_before_the_host_is_gone(
    start: StartWorker,
    producer: Client,
    platform: MetadataServer,
    client: redis.Redis,
    namespace: str,
) -> None:
    first = start(
        IMAGEFLEET_MODEL="fake:seconds=60,capacity=64",
        IMAGEFLEET_PREEMPTED_DRAIN_S="0",
        IMAGEFLEET_PREEMPTION_URL=platform.url,
    )
    jobs = producer.submit_many([f"prompt {i}" for i in range(64)])
    ids = [job.id for job in jobs]
    until(lambda: {each.state for each in producer.statuses(ids)} == {State.RUNNING})
    platform.preempt()
    assert first.wait() == 0
    assert {each.state for each in producer.statuses(ids)} == {State.QUEUED}
    assert client.llen(list_key(f"{namespace}.default.native", 3)) == 64


def test_a_preempted_host_finishes_a_batch_that_ends_in_time(
    start: StartWorker, producer: Client, platform: MetadataServer
) -> None:
    first = start(
        *PATIENT,
        IMAGEFLEET_MODEL="fake:seconds=0.2,capacity=2",
        IMAGEFLEET_PREEMPTED_DRAIN_S="300",
        IMAGEFLEET_DRAIN_S="300",
        IMAGEFLEET_PREEMPTION_URL=platform.url,
    )
    jobs = producer.submit_many(["a", "b", "c"], num_inference_steps=20)
    until(lambda: any(job.status().step for job in jobs))  # a running job may not be on the devices
    platform.preempt()
    assert first.wait() == 0
    states = [job.status().state for job in jobs]
    assert sorted(states) == [State.QUEUED, State.SUCCEEDED, State.SUCCEEDED]
    assert "drained: 2 jobs with 2 images ended; 0 jobs" in first.output()


def test_an_idle_worker_leaves_a_preempted_host_too(
    start: StartWorker, producer: Client, platform: MetadataServer
) -> None:
    first = start(*PATIENT, IMAGEFLEET_PREEMPTION_URL=platform.url)
    until(lambda: len(platform.requests) >= 2)
    platform.preempt()
    assert first.wait() == 0
    job = producer.submit("for somebody else")
    start()
    assert finish(producer, [job], timeout=900) == {State.SUCCEEDED}


def test_the_preemption_notice_cuts_a_drain_short(
    start: StartWorker, producer: Client, platform: MetadataServer
) -> None:
    first = start(
        *PATIENT,
        IMAGEFLEET_MODEL="fake:seconds=1,capacity=2",
        IMAGEFLEET_DRAIN_S="600",
        IMAGEFLEET_PREEMPTED_DRAIN_S="0.5",
        IMAGEFLEET_PREEMPTION_URL=platform.url,
    )
    jobs = producer.submit_many(["a", "b"], num_inference_steps=100)
    until(lambda: any(job.status().step for job in jobs))  # a running job may not be on the devices
    first.process.terminate()
    first.await_log("Warm shutdown")
    assert {job.status().state for job in jobs} == {State.RUNNING}
    platform.preempt()
    assert first.wait() == 0
    assert "drained: 0 jobs with 0 images ended; 2 jobs with 2 images" in first.output()
    assert {job.status().state for job in jobs} == {State.QUEUED}


@pytest.mark.parametrize("fault", ["away", "failing", "hanging"])
def test_a_platform_without_a_usable_answer_disturbs_no_work(
    start: StartWorker, producer: Client, platform: MetadataServer, fault: str
) -> None:
    released = threading.Event()
    responses: dict[str, Respond] = {"failing": status(500), "hanging": stalled(b"TRUE", released)}
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but not listening
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/preempted"
        platform.respond = responses.get(fault)
        worker = start(IMAGEFLEET_PREEMPTION_URL=url if fault == "away" else platform.url)
        jobs = producer.submit_many([f"prompt {i}" for i in range(16)])
        assert finish(producer, jobs, timeout=900) == {State.SUCCEEDED}
        if fault == "away":
            worker.await_log("failed, querying it again")
        else:
            until(lambda: len(platform.requests) >= (3 if fault == "failing" else 1))
        assert worker.terminate() == 0
    released.set()
    assert "drained" in worker.output()
    if fault != "hanging":  # its timeout is longer than this test
        assert worker.output().count("failed, querying it again") == 1
