"""The Python API with a real Redis and without a worker."""

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
from imagefleet.shared.jobs.celery_message import headers_of
from imagefleet.shared.jobs.model import JobError, State
from imagefleet.shared.jobs.offers import Offer, OfferRegistry
from imagefleet.shared.jobs.queues import list_key, queue_of
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.result import JobResult
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


def test_result_returns_the_stored_result(producer: Client, records: JobRecords) -> None:
    job = producer.submit("a", seed=7)
    _succeed(records, job.id)
    assert job.result(timeout=900) == RESULT
    assert producer.get(job.id).status().request.seed == 7


def test_workers_lists_those_whose_lease_has_not_expired(
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
        claims.lease.acquire()
    assert producer.workers() == ["alive"]


def test_as_completed_yields_each_job_as_it_ends(producer: Client, records: JobRecords) -> None:
    jobs = producer.submit_many(["a", {"prompt": "b", "seed": 3}, "c"], guidance_scale=2)
    assert [job.status().request.guidance_scale for job in jobs] == [2, 2, 2]
    _succeed(records, jobs[1].id)
    ended = producer.as_completed(jobs, timeout=900)
    assert next(ended).id == jobs[1].id
    _succeed(records, jobs[0].id)
    jobs[2].cancel()
    assert {job.id for job in ended} == {jobs[0].id, jobs[2].id}


def test_submit_many_accepts_more_jobs_than_one_part(producer: Client) -> None:
    jobs = producer.submit_many(f"p {i}" for i in range(1201))
    states = {status.state for status in producer.statuses(job.id for job in jobs)}
    assert (len({job.id for job in jobs}), states) == (1201, {State.QUEUED})


@pytest.mark.parametrize("fourth", [{"prompt": "d", "id": "d"}, "d"])
def test_a_part_with_an_id_in_use_is_not_accepted_in_part(producer: Client, fourth: object) -> None:
    entries = [{"prompt": each, "id": each} for each in "abc"]
    sentence = "entry 3: id='b': is in use already, for a job with other"
    for other in ("in the same call", "in an earlier call"):
        with pytest.raises(InvalidRequest, match=sentence):
            producer.submit_many([*entries, {"prompt": other, "id": "b"}, fourth])  # type: ignore[list-item]
        waiting = producer.tenants.statuses()[0].waiting
        assert waiting == (0 if other == "in the same call" else 1)
        if not waiting:
            producer.submit("b", id="b")
    jobs = producer.submit_many(entries)
    assert [job.status().request.prompt for job in jobs] == ["a", "b", "c"]
    assert producer.tenants.statuses()[0].waiting == 3


def test_the_handle_of_asyncio_shows_its_id(producer: Client) -> None:
    async def show() -> str:
        async with AsyncClient(settings=producer.settings) as client:
            return repr(await client.submit("a", id="cat-1"))

    assert "cat-1" in asyncio.run(show())


def test_a_result_timeout_leaves_the_job_queued(producer: Client) -> None:
    job = producer.submit("a")
    with pytest.raises(ResultTimeout, match=r"after 0\.05 s"):
        job.result(timeout=0.05)
    assert job.status().state is State.QUEUED


def test_a_failed_job_raises_job_failed_with_the_stored_code(
    producer: Client, records: JobRecords
) -> None:
    job = producer.submit("a")
    start_attempt(records, job.id, "x")
    records.fail(job.id, "x", JobError(code="device_error", message="out of memory"), None)
    with pytest.raises(JobFailed, match="out of memory") as failed:
        job.result(timeout=900)
    assert failed.value.failure_code == "device_error"


def test_result_of_a_cancelled_job_raises_job_cancelled(producer: Client) -> None:
    job = producer.submit("a")
    assert job.cancel() is State.CANCELLED
    assert job.cancel() is State.CANCELLED
    with pytest.raises(JobCancelled):
        job.result(timeout=900)


def test_unknown_jobs_raise_an_error_with_their_id(producer: Client) -> None:
    for method in (producer.get, producer.cancel):
        with pytest.raises(UnknownJob, match="'nobody'"):
            method("nobody")


def test_statuses_leaves_out_unknown_jobs_only(producer: Client) -> None:
    job = producer.submit("a")
    assert [status.id for status in producer.statuses(["nobody", job.id])] == [job.id]


def test_a_missing_prompt_and_a_none_prompt_have_their_own_errors(producer: Client) -> None:
    with pytest.raises(InvalidRequest, match="prompt=None: must be a valid string"):
        producer.submit(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="prompt=None: field required"):
        producer.submit_many([{"seed": 3}])


def test_the_clients_tenant_applies_to_jobs_that_name_none(
    redis_server: LocalRedisServer, namespace: str
) -> None:
    producer = Client(redis_server.url, namespace=namespace, tenant="gold")
    jobs = producer.submit_many(["a", {"prompt": "b", "tenant": "free"}])
    assert [job.status().request.tenant for job in jobs] == ["gold", "free"]
    waiting = {each.tenant: each.waiting for each in producer.tenants.statuses()}
    assert waiting == {"*": 2, "gold": 1, "free": 1}


def test_a_full_queue_accepts_none_of_the_part(producer: Client, records: JobRecords) -> None:
    producer.tenants.set_limit("*", 3)
    kept = producer.submit_many(["a", "b"])
    with pytest.raises(QueueFull, match="2 wait, and 2 more would exceed the limit of 3") as full:
        producer.submit_many([{"prompt": "c", "id": "c"}, "d"])
    assert (full.value.code, full.value.retryable) == ("queue_full", True)
    assert producer.statuses(["c"]) == []
    producer.submit("c", id="c", seed=1)
    again = producer.submit("c", id="c", seed=1)  # repeating a submission adds no job
    assert not again.status().done
    with pytest.raises(QueueFull):
        producer.submit("d")
    producer.tenants.set_limit("*", None)
    producer.submit("d")
    assert producer.statuses([job.id for job in kept])[0].state is State.QUEUED


def test_a_tenant_limit_does_not_apply_to_other_tenants(producer: Client) -> None:
    producer.tenants.set_limit("free", 1)
    producer.submit("a", tenant="free", height=64, width=64)
    with pytest.raises(TenantLimit, match="tenant 'free' has enough jobs waiting: 1 wait"):
        producer.submit("b", tenant="free")
    producer.submit("b", tenant="gold")
    producer.submit("b")


def test_the_jobs_without_a_tenant_have_a_limit_of_their_own(producer: Client) -> None:
    producer.tenants.set_limit("", 1)
    producer.submit("a")
    with pytest.raises(TenantLimit, match="1 wait"):
        producer.submit("b")
    producer.submit("b", tenant="gold")


def test_a_limit_is_never_exceeded_by_concurrent_producers(producer: Client) -> None:
    producer.tenants.set_limit("*", 50)
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
def test_weights_outside_the_range_are_refused(producer: Client, weight: float) -> None:
    with pytest.raises(InvalidRequest, match="weight="):
        producer.tenants.set_weight("gold", weight)


def test_submit_refuses_what_no_worker_offers(
    redis_server: LocalRedisServer, namespace: str
) -> None:
    OfferRegistry(connect(redis_server.url), namespace).announce(offer_of(INFO))
    producer = Client(redis_server.url, namespace=namespace)
    for wrong, limit in (
        ({"model": "other"}, "no worker has offered this model; offered are tiny"),
        ({"height": 512, "width": 512}, "it serves 64x64, 64x128"),
        ({"scheduler": "magic"}, "it offers ddim"),
        ({"num_inference_steps": 51}, "at most 50"),
    ):
        with pytest.raises(InvalidRequest, match=limit):
            producer.submit("a", **wrong)
    producer.submit("a", model="tiny", height=64, width=128, num_inference_steps=50)


def test_an_unreachable_redis_is_reported_without_its_password() -> None:
    with pytest.raises(BrokerUnavailable, match="localhost:1/0 does not answer") as error:
        Client("redis://:secret@localhost:1/0").submit("a")
    assert "secret" not in str(error.value)


def test_an_address_with_a_wrong_scheme_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="redis_url: must begin with redis://"):
        Client("http://localhost")


def test_a_full_redis_keeps_as_many_messages_as_records(own_redis: LocalRedisServer) -> None:
    admin = connect(own_redis.url)
    admin.config_set("maxmemory", "1mb")
    producer = Client(own_redis.url)
    with pytest.raises(BrokerUnavailable, match="full and took nothing"):
        producer.submit_many(["a" * 3000] * 2000)
    admin.config_set("maxmemory", "0")
    queued = admin.llen("imagefleet.default.native\x06\x163")
    assert queued == len(list(admin.scan_iter("imagefleet:job:*")))


def test_the_asyncio_client_behaves_like_the_client(
    redis_server: LocalRedisServer, namespace: str, records: JobRecords
) -> None:
    async def use() -> None:
        async with AsyncClient(redis_server.url, namespace=namespace) as client:
            jobs = await client.submit_many(["a", "b"])
            for job in jobs:
                _succeed(records, job.id)
            ended = [job.id async for job in client.as_completed(jobs, timeout=900)]
            assert set(ended) == {job.id for job in jobs}
            assert await jobs[0].result(timeout=900) == RESULT
            third = await client.submit("c")
            assert await client.workers() == []
            assert await third.cancel() is State.CANCELLED
            with pytest.raises(JobCancelled):
                await (await client.get(third.id)).result(timeout=900)

    asyncio.run(use())


def test_a_message_counts_the_steps_with_the_strength_of_its_model(
    redis_server: LocalRedisServer, namespace: str, client: redis.Redis
) -> None:
    """A flow model runs 6 of 9 steps at the strength 0.6; Stable Diffusion runs 7 at 0.8."""
    strengths = {"strength": 0.6, "mask_strength": 1.0, "rounds_steps_up": True}
    offer = Offer(**{**offer_of(INFO).model_dump(), **strengths})
    OfferRegistry(connect(redis_server.url), namespace).announce(offer)
    producer = Client(redis_server.url, namespace=namespace)
    job = producer.submit("a", image="jobs/a/0.png", num_inference_steps=9)
    queue = queue_of(namespace, job.status().request)
    message = client.lindex(list_key(queue, job.status().request.priority), 0)
    assert headers_of(str(message))["steps"] == 6


def test_offers_are_read_again_when_the_cache_expires(
    redis_server: LocalRedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = OfferRegistry(connect(redis_server.url), namespace)
    now = [time.monotonic()]
    monkeypatch.setattr("imagefleet.shared.jobs.offers.time.monotonic", lambda: now[0])
    assert catalogue.offers() == {}
    old = Offer(**{**offer_of(INFO).model_dump(), "model": "old"})
    new = Offer(**{**offer_of(INFO).model_dump(), "model": "new"})
    workers = OfferRegistry(connect(redis_server.url), namespace)
    workers.announce(old)
    assert catalogue.offers()["old"] == old  # that there were none was not cached
    workers.announce(new)
    assert "new" not in catalogue.offers()
    now[0] += 60
    assert catalogue.offers()["new"] == new
