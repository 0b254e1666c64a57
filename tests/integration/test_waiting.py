"""Waiting for jobs while Redis restarts, and while no worker is alive."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from imagefleet import (
    AsyncClient,
    BrokerUnavailable,
    Client,
    InvalidRequest,
    Job,
    JobFailed,
    JobResult,
    ResultTimeout,
    State,
)
from imagefleet.producer.client.async_client import AsyncJob
from imagefleet.producer.commands.waiting import wait_for_jobs
from imagefleet.producer.connection import outages
from imagefleet.shared.jobs.model import JobError
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import leases_key
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import until
from tests.support.records import start_attempt

RESULT = JobResult(images=(), model="m", model_digest="d", worker="w", timings={})
AWAY = "Waiting until it is back"
NO_WORKER = "no worker is alive"


def _succeed(server: LocalRedisServer, job_id: str) -> None:
    records = JobRecords(connect(server.url), "imagefleet", 3600)
    start_attempt(records, job_id, "a")
    records.succeed(job_id, "a", RESULT, None)


def _async_result(server: LocalRedisServer, job_id: str) -> JobResult:
    async def wait() -> JobResult:
        async with AsyncClient(server.url) as client:
            return await (await client.get(job_id)).result(timeout=900)

    return asyncio.run(wait())


@pytest.mark.parametrize(
    "wait",
    [
        lambda server, job_id: Client(server.url).get(job_id).result(timeout=900),
        lambda server, job_id: Client(server.url).get(job_id).result(),
        _async_result,
    ],
)
def test_a_wait_survives_a_restart_of_redis(
    own_redis: LocalRedisServer,
    caplog: pytest.LogCaptureFixture,
    wait: Callable[[LocalRedisServer, str], JobResult],
) -> None:
    job = Client(own_redis.url).submit("a")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait, own_redis, job.id)
        until(lambda: NO_WORKER in caplog.text)  # the first poll was answered
        own_redis.kill()
        until(lambda: AWAY in caplog.text)
        own_redis.start()
        _succeed(own_redis, job.id)
        assert waiting.result(300) == RESULT
    assert caplog.text.count(AWAY) == 1


def test_a_poll_of_ten_thousand_jobs_is_one_round_trip(
    producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = producer.submit_many(f"p {number}" for number in range(10_000))
    waiting = {job.id: job for job in jobs}
    sent: list[object] = []
    send = redis.connection.AbstractConnection.send_packed_command

    def count(connection: Any, command: Any, check_health: bool = True) -> None:
        sent.append(command)
        send(connection, command, check_health)

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", count)
    monkeypatch.setattr(outages, "GRACE_S", 300)  # a busy machine may take seconds for 10,000 jobs
    for polls in range(1, 4):
        assert producer.pop_ended(waiting) == []
        assert len(sent) == polls
    with pytest.raises(ResultTimeout, match="10000 jobs are not done"):
        list(producer.as_completed(jobs, timeout=0))
    assert len(sent) == 3 + 1 + 2  # one poll; then once Redis' clock and the workers' leases
    jobs[0].cancel()
    assert producer.pop_ended(waiting) == [jobs[0]]


def test_the_wait_for_a_dataset_survives_a_restart_of_redis(
    own_redis: LocalRedisServer, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    run = Client(own_redis.url).bulk(["a"], tmp_path / "made")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(run.wait, 300)
        until(lambda: NO_WORKER in caplog.text)
        own_redis.kill()
        until(lambda: AWAY in caplog.text)
        own_redis.start()
        run.cancel()
        assert waiting.result(300).state is State.CANCELLED


def test_an_outage_that_lasts_until_the_timeout_is_an_error_of_redis(
    own_redis: LocalRedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    job = Client(own_redis.url).submit("a")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(job.result, timeout=15)
        until(lambda: NO_WORKER in caplog.text)
        own_redis.kill()
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            waiting.result(300)


@pytest.fixture
def cut_off(
    own_redis: LocalRedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Job]]:
    """Three ended jobs. Redis is away from the poll that sees an end to the first warning."""
    producer = Client(own_redis.url)
    jobs = producer.submit_many(["a"] * 3)
    for job in jobs:
        _succeed(own_redis, job.id)
    pop_ended = Client.pop_ended

    def pop_and_cut(*given: Any, **options: Any) -> list[Job]:
        ended = pop_ended(*given, **options)
        own_redis.kill()
        return ended

    def start_again() -> None:
        until(lambda: AWAY in caplog.text)
        monkeypatch.undo()
        own_redis.start()

    monkeypatch.setattr(Client, "pop_ended", pop_and_cut)
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(start_again)
        yield jobs
        starting.result(300)


@pytest.mark.parametrize(
    "wait",
    [
        lambda server, job: job.result(timeout=900),
        lambda server, job: asyncio.run(AsyncJob(job=job, client=AsyncClient(server.url)).result()),
    ],
)
def test_the_result_is_read_although_redis_is_away_after_the_last_poll(
    own_redis: LocalRedisServer,
    cut_off: list[Job],
    wait: Callable[[LocalRedisServer, Job], JobResult],
) -> None:
    assert wait(own_redis, cut_off[0]) == RESULT


def test_a_command_prints_every_result_although_redis_is_away_after_the_last_poll(
    cut_off: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(cut_off[0].client, Client)
    assert wait_for_jobs(cut_off[0].client, cut_off, 300, None, as_json=True) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_map_survives_an_outage_between_two_results(
    own_redis: LocalRedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Client(own_redis.url)
    jobs = producer.submit_many(["a"] * 3)
    for job in jobs:
        _succeed(own_redis, job.id)
    monkeypatch.setattr(producer, "submit_many", lambda _: jobs)
    results = producer.map(["a"] * 3, timeout=900)
    assert next(results) == RESULT
    own_redis.kill()
    with ThreadPoolExecutor() as pool:
        second = pool.submit(next, results)
        until(lambda: AWAY in caplog.text or second.done())
        own_redis.start()
        assert second.result(300) == RESULT
    assert list(results) == [RESULT]


def test_a_wait_that_cannot_begin_fails_at_once(own_redis: LocalRedisServer) -> None:
    client = Client(own_redis.url)
    job = client.submit("a")
    own_redis.kill()
    with pytest.raises(BrokerUnavailable):
        job.result()


def test_a_missing_worker_is_reported_once_until_one_was_alive(
    redis_server: LocalRedisServer,
    client: redis.Redis,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = Client(redis_server.url, namespace=namespace)
    jobs = producer.submit_many(["a", "b"])
    for job in jobs:
        with pytest.raises(ResultTimeout):
            job.result(timeout=0)
    assert caplog.text.count(NO_WORKER) == 1
    client.zadd(leases_key(namespace), {"w": time.time() + 60})
    with pytest.raises(ResultTimeout):
        jobs[0].result(timeout=0)
    client.delete(leases_key(namespace))
    with pytest.raises(ResultTimeout):
        jobs[0].result(timeout=0)
    assert caplog.text.count(NO_WORKER) == 2


def test_a_job_that_has_ended_needs_no_worker(
    redis_server: LocalRedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Client(redis_server.url, namespace=namespace)
    job = producer.submit("a")
    job.cancel()
    assert [each.id for each in producer.as_completed([job])] == [job.id]
    assert NO_WORKER not in caplog.text


@pytest.fixture
def ended(redis_server: LocalRedisServer, namespace: str) -> Iterator[Client]:
    """A client whose submitted jobs end at once: 'bad' ones fail."""
    producer = Client(redis_server.url, namespace=namespace)
    records = JobRecords(connect(redis_server.url), namespace, 3600)
    submit_many = producer.submit_many

    def submit_and_end(prompts: list[str]) -> list[object]:
        jobs = submit_many(prompts)
        for prompt, job in zip(prompts, jobs, strict=True):
            start_attempt(records, job.id, "x")
            if prompt == "bad":
                records.fail(job.id, "x", JobError(code="device_error", message="no"), None)
            else:
                records.succeed(job.id, "x", RESULT, None)
        return list(jobs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer, "submit_many", submit_and_end)
        yield producer


def test_map_returns_errors_in_the_place_of_results_if_asked(ended: Client) -> None:
    outcomes = list(ended.map(["a", "bad", "c"], return_exceptions=True, timeout=900))
    assert [type(each) for each in outcomes] == [JobResult, JobFailed, JobResult]
    with pytest.raises(JobFailed):
        list(ended.map(["a", "bad", "c"], timeout=900))


def test_a_timeout_that_is_not_a_number_is_refused(own_redis: LocalRedisServer) -> None:
    with Client(own_redis.url) as client, pytest.raises(InvalidRequest, match="timeout=nan"):
        client.submit("a").result(float("nan"))
