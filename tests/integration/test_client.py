"""The Python API on a real Redis, without a worker."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from imagefleet import AsyncClient, Client
from imagefleet.shared.errors import (
    BrokerUnavailable,
    ConfigurationError,
    InvalidRequest,
    JobCancelled,
    JobFailed,
    QueueFull,
    ResultTimeout,
    TenantLimit,
    UnknownJob,
)
from imagefleet.shared.jobs.model import JobError, JobResult, State
from imagefleet.shared.jobs.offers import Offer, OfferRegistry
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.jobs.attempt import offer_of
from imagefleet.worker.queues.claims import Claims
from tests.support.engines import INFO
from tests.support.records import start_attempt

RESULT = JobResult(images=(), model="m", model_digest="d", worker="w", timings={})


@pytest.fixture
def producer(redis_server: LocalRedisServer, namespace: str) -> Client:
    return Client(redis_server.url, namespace=namespace)


@pytest.fixture
def records(redis_server: LocalRedisServer, namespace: str) -> JobRecords:
    return JobRecords(connect(redis_server.url), namespace, 3600)


def _succeed(records: JobRecords, job_id: str) -> None:
    start_attempt(records, job_id, "a")
    records.succeed(job_id, "a", RESULT, None)


def test_results_come_back_to_whoever_waits(producer: Client, records: JobRecords) -> None:
    job = producer.submit("a", seed=7)
    _succeed(records, job.id)
    assert job.result(timeout=60) == RESULT
    assert producer.get(job.id).status().request.seed == 7


def test_workers_are_alive_until_their_lease_ends(
    producer: Client, client: redis.Redis, namespace: str
) -> None:
    assert producer.workers() == []
    for worker, lease_s in (("alive", 60), ("dead", -1)):
        claims = Claims(
            no_retry_client=client,
            retrying_client=client,
            namespace=namespace,
            worker=worker,
            lease_s=lease_s,
        )
        claims.acquire_lease()
    assert producer.workers() == ["alive"]


def test_as_completed_yields_each_job_as_it_ends(producer: Client, records: JobRecords) -> None:
    jobs = producer.submit_many(["a", {"prompt": "b", "seed": 3}, "c"], guidance_scale=2)
    assert [job.status().request.guidance_scale for job in jobs] == [2, 2, 2]
    _succeed(records, jobs[1].id)
    ended = producer.as_completed(jobs, timeout=60)
    assert next(ended).id == jobs[1].id
    _succeed(records, jobs[0].id)
    jobs[2].cancel()
    assert {job.id for job in ended} == {jobs[0].id, jobs[2].id}


def test_more_jobs_than_a_chunk_are_all_accepted(producer: Client) -> None:
    jobs = producer.submit_many(f"p {i}" for i in range(1201))
    states = {status.state for status in producer.statuses(job.id for job in jobs)}
    assert (len({job.id for job in jobs}), states) == (1201, {State.QUEUED})


def test_a_timeout_says_that_the_job_goes_on(producer: Client) -> None:
    job = producer.submit("a")
    with pytest.raises(ResultTimeout, match=r"after 0\.05 s"):
        job.result(timeout=0.05)
    assert job.status().state is State.QUEUED


def test_failures_are_typed_and_carry_the_stored_code(
    producer: Client, records: JobRecords
) -> None:
    job = producer.submit("a")
    start_attempt(records, job.id, "x")
    records.fail(job.id, "x", JobError(code="device_error", message="out of memory"), None)
    with pytest.raises(JobFailed, match="out of memory") as failed:
        job.result(timeout=60)
    assert failed.value.failure_code == "device_error"


def test_a_cancelled_job_raises_where_it_is_waited_for(producer: Client) -> None:
    job = producer.submit("a")
    assert job.cancel() is State.CANCELLED
    assert job.cancel() is State.CANCELLED
    with pytest.raises(JobCancelled):
        job.result(timeout=60)


def test_unknown_jobs_are_named(producer: Client) -> None:
    for act in (producer.get, producer.cancel):
        with pytest.raises(UnknownJob, match="'nobody'"):
            act("nobody")


def test_one_unknown_job_does_not_hide_the_others(producer: Client) -> None:
    job = producer.submit("a")
    assert [status.id for status in producer.statuses(["nobody", job.id])] == [job.id]


def test_a_missing_prompt_is_named_as_what_it_is(producer: Client) -> None:
    with pytest.raises(InvalidRequest, match="prompt=None: must be a valid string"):
        producer.submit(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="prompt=None: field required"):
        producer.submit_many([{"seed": 3}])


def test_a_client_s_tenant_is_that_of_jobs_which_name_none(
    redis_server: LocalRedisServer, namespace: str
) -> None:
    producer = Client(redis_server.url, namespace=namespace, tenant="gold")
    jobs = producer.submit_many(["a", {"prompt": "b", "tenant": "free"}])
    assert [job.status().request.tenant for job in jobs] == ["gold", "free"]
    waiting = {each.tenant: each.waiting for each in producer.tenants.statuses()}
    assert waiting == {"*": 2, "gold": 1, "free": 1}


def test_a_full_queue_takes_nothing_more_and_says_so(producer: Client, records: JobRecords) -> None:
    producer.tenants.limit("*", 3)
    kept = producer.submit_many(["a", "b"])
    with pytest.raises(QueueFull, match="2 wait, and 2 more would exceed the limit of 3") as full:
        producer.submit_many([{"prompt": "c", "id": "c"}, "d"])
    assert (full.value.code, full.value.retryable) == ("queue_full", True)
    assert producer.statuses(["c"]) == []
    producer.submit("c", id="c", seed=1)
    assert not producer.submit("c", id="c", seed=1).status().done  # a resend is no new job
    with pytest.raises(QueueFull):
        producer.submit("d")
    producer.tenants.limit("*", None)
    producer.submit("d")
    assert producer.statuses([job.id for job in kept])[0].state is State.QUEUED


def test_a_tenant_s_limit_is_its_own(producer: Client) -> None:
    producer.tenants.limit("free", 1)
    producer.submit("a", tenant="free", height=64, width=64)
    with pytest.raises(TenantLimit, match="tenant 'free' has enough jobs waiting: 1 wait"):
        producer.submit("b", tenant="free")
    producer.submit("b", tenant="gold")
    producer.submit("b")


def test_limits_hold_for_producers_that_race(producer: Client) -> None:
    producer.tenants.limit("*", 50)
    refused = []

    def submit(number: int) -> None:
        try:
            producer.submit(f"p {number}")
        except QueueFull as error:
            refused.append(error)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(submit, range(80)))
    assert (producer.tenants.statuses()[0].waiting, len(refused)) == (50, 30)


@pytest.mark.parametrize("weight", [0, -1, float("nan"), 1e9])
def test_weights_that_are_none_are_refused(producer: Client, weight: float) -> None:
    with pytest.raises(InvalidRequest, match="weight="):
        producer.tenants.set_weight("gold", weight)


def test_what_no_worker_here_offers_is_refused_at_the_door(
    redis_server: LocalRedisServer, namespace: str
) -> None:
    OfferRegistry(connect(redis_server.url), namespace).announce(offer_of(INFO))
    producer = Client(redis_server.url, namespace=namespace)
    for wrong, limit in (
        ({"model": "other"}, "there is tiny"),
        ({"height": 512, "width": 512}, "there is 64x64, 64x128"),
        ({"scheduler": "magic"}, "there is ddim"),
        ({"num_inference_steps": 51}, "at most 50"),
    ):
        with pytest.raises(InvalidRequest, match=limit):
            producer.submit("a", **wrong)
    producer.submit("a", model="tiny", height=64, width=128, num_inference_steps=50)


def test_a_missing_redis_is_one_clear_sentence_without_its_password() -> None:
    with pytest.raises(BrokerUnavailable, match="localhost:1/0 does not answer") as missing:
        Client("redis://:secret@localhost:1/0").submit("a")
    assert "secret" not in str(missing.value)


def test_an_address_that_is_none_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="redis_url: must begin with redis://"):
        Client("http://localhost")


def test_a_full_redis_says_that_nothing_was_taken(own_redis: LocalRedisServer) -> None:
    admin = connect(own_redis.url)
    admin.config_set("maxmemory", "1mb")
    producer = Client(own_redis.url)
    with pytest.raises(BrokerUnavailable, match="full and took nothing"):
        producer.submit_many(["a" * 3000] * 2000)
    admin.config_set("maxmemory", "0")
    queued = admin.llen("imagefleet.default.native\x06\x163")
    assert queued == len(list(admin.scan_iter("imagefleet:job:*")))


def test_the_asyncio_client_does_the_same(
    redis_server: LocalRedisServer, namespace: str, records: JobRecords
) -> None:
    async def use() -> None:
        async with AsyncClient(redis_server.url, namespace=namespace) as client:
            jobs = await client.submit_many(["a", "b"])
            for job in jobs:
                _succeed(records, job.id)
            ended = [job.id async for job in client.as_completed(jobs, timeout=60)]
            assert set(ended) == {job.id for job in jobs}
            assert await jobs[0].result(timeout=60) == RESULT
            third = await client.submit("c")
            assert await client.workers() == []
            assert await third.cancel() is State.CANCELLED
            with pytest.raises(JobCancelled):
                await (await client.get(third.id)).result(timeout=60)

    asyncio.run(use())


def test_offers_are_read_again_after_a_while(
    redis_server: LocalRedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = OfferRegistry(connect(redis_server.url), namespace)
    now = [time.monotonic()]
    monkeypatch.setattr("imagefleet.shared.jobs.offers.time.monotonic", lambda: now[0])
    assert catalogue.offers() == {}
    offer = Offer(**{**offer_of(INFO).model_dump(), "model": "new"})
    catalogue.announce(offer)
    assert catalogue.offers() == {}
    now[0] += 60
    assert catalogue.offers()["new"] == offer
