"""A real worker on a host that its platform takes away, or whose platform says nothing of use."""

import socket
import threading
from collections.abc import Iterator

import pytest
import redis

from imagefleet import Client
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key
from imagefleet.worker.process.exit_codes import ExitCode
from tests.support.gallery import endless, status
from tests.support.jobs import finish
from tests.support.metadata_server import Manner, MetadataServer
from tests.support.processes import StartWorker, until

ENDLESS = "fake:seconds=60,capacity=2"
"""Devices that no test sees the end of a step of."""


@pytest.fixture
def platform() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        yield server


def test_the_jobs_of_a_preempted_host_go_back_at_once_and_run_elsewhere(
    start: StartWorker,
    producer: Client,
    platform: MetadataServer,
    client: redis.Redis,
    namespace: str,
) -> None:
    first = start(IMAGEFLEET_MODEL=ENDLESS, IMAGEFLEET_PREEMPTION_URL=platform.url)
    jobs = producer.submit_many(["a", "b", "c"])
    until(lambda: [job.status().state for job in jobs].count(State.RUNNING) == 2)
    platform.preempt()
    assert first.wait() == ExitCode.TEMPFAIL
    assert "about to take this host away" in first.output()
    assert {job.status().state for job in jobs} == {State.QUEUED}
    assert not client.keys(f"{namespace}:claims:*")
    start()
    assert finish(producer, jobs, timeout=120) == {State.SUCCEEDED}
    assert {job.status().deliveries for job in jobs} == {1}


def test_a_batch_of_many_goes_back_before_the_worker_s_time_is_over(
    start: StartWorker,
    producer: Client,
    platform: MetadataServer,
    client: redis.Redis,
    namespace: str,
) -> None:
    first = start(
        IMAGEFLEET_MODEL="fake:seconds=60,capacity=64", IMAGEFLEET_PREEMPTION_URL=platform.url
    )
    jobs = producer.submit_many([f"prompt {i}" for i in range(64)])
    ids = [job.id for job in jobs]
    until(lambda: {each.state for each in producer.statuses(ids)} == {State.RUNNING})
    platform.preempt()
    assert first.wait() == ExitCode.TEMPFAIL
    assert {each.state for each in producer.statuses(ids)} == {State.QUEUED}
    assert client.llen(list_key(f"{namespace}.default.native", 3)) == 64


def test_a_worker_with_nothing_to_do_leaves_a_preempted_host_too(
    start: StartWorker, producer: Client, platform: MetadataServer
) -> None:
    first = start(IMAGEFLEET_PREEMPTION_URL=platform.url)
    until(lambda: len(platform.asked) >= 2)
    platform.preempt()
    assert first.wait() == ExitCode.TEMPFAIL
    job = producer.submit("for somebody else")
    start()
    assert finish(producer, [job], timeout=120) == {State.SUCCEEDED}


def test_the_notice_ends_a_drain(
    start: StartWorker, producer: Client, platform: MetadataServer
) -> None:
    first = start(
        IMAGEFLEET_MODEL="fake:seconds=1,capacity=2",
        IMAGEFLEET_DRAIN_S="600",
        IMAGEFLEET_PREEMPTION_URL=platform.url,
    )
    jobs = producer.submit_many(["a", "b"], num_inference_steps=100)
    until(lambda: any(job.status().step for job in jobs))  # begun is not yet on the devices
    first.process.terminate()
    first.await_log("Warm shutdown")
    assert {job.status().state for job in jobs} == {State.RUNNING}
    platform.preempt()
    assert first.wait() == ExitCode.TEMPFAIL
    assert "quitting; requeued" in first.output()
    assert {job.status().state for job in jobs} == {State.QUEUED}


@pytest.mark.parametrize("flawed", ["away", "failing", "hanging"])
def test_a_platform_that_says_nothing_of_use_disturbs_no_work(
    start: StartWorker, producer: Client, platform: MetadataServer, flawed: str
) -> None:
    released = threading.Event()
    manners: dict[str, Manner] = {"failing": status(500), "hanging": endless(b"TRUE", released)}
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/preempted"
        platform.manner = manners.get(flawed)
        worker = start(IMAGEFLEET_PREEMPTION_URL=url if flawed == "away" else platform.url)
        jobs = producer.submit_many([f"prompt {i}" for i in range(16)])
        assert finish(producer, jobs, timeout=120) == {State.SUCCEEDED}
        if flawed == "away":
            worker.await_log("no preemption notice can be had")
        else:
            until(lambda: len(platform.asked) >= (3 if flawed == "failing" else 1))
        assert worker.terminate() == 0
    released.set()
    assert "drained" in worker.output()
    if flawed != "hanging":  # which is waited for longer than this test takes
        assert worker.output().count("no preemption notice can be had") == 1
