"""A Redis that takes no writes for a while, and how each refusal is told."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult
from redis.backoff import NoBackoff

from imagefleet import Client
from imagefleet.shared.errors import BrokerUnavailable, ConfigurationError
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.connection import (
    RETRY_FOREVER,
    celery_url,
    connect,
    transport_options,
)
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.write_errors import (
    RetryUntilWritable,
    WritesRefused,
    is_temporary,
)
from tests.support.processes import StartWorker, until
from tests.support.redis import WatchedPair

_TOO_FEW_REPLICAS = ("min-replicas-to-write", "1")
_ENOUGH = ("min-replicas-to-write", "0")


@pytest.fixture
def admin(own_redis: LocalRedisServer) -> Iterator[redis.Redis]:
    with connect(own_redis.url) as client:
        yield client


def _command(client: redis.Redis) -> object:
    return client.set("a", "1")


def _transaction(client: redis.Redis) -> object:
    with client.pipeline(transaction=True) as pipe:
        return pipe.set("a", "1").hset("b", "c", "d").execute()


def _script(client: redis.Redis) -> object:
    add =load_script(client, "imagefleet.shared.webhooks", "outbox_add")
    return add(keys=["due", "messages"], args=["a", "{}"]) or True


@pytest.mark.parametrize("write", [_command, _transaction, _script])
def test_a_worker_s_write_waits_until_redis_takes_it(
    own_redis: LocalRedisServer, admin: redis.Redis, write: Callable[[redis.Redis], object]
) -> None:
    admin.config_set(*_TOO_FEW_REPLICAS)
    with (
        connect(own_redis.url, retries=0) as impatient,
        pytest.raises(redis.ResponseError, match="Not enough good replicas"),
    ):
        write(impatient)
    done: list[object] = []
    with connect(own_redis.url, retries=RETRY_FOREVER) as patient:
        waiting = threading.Thread(target=lambda: done.append(write(patient)), daemon=True)
        refused = _refusals(admin)
        waiting.start()
        until(lambda: _refusals(admin) >= refused + 2)  # it was refused, and asked again
        assert not done
        admin.config_set(*_ENOUGH)
        waiting.join(timeout=60)
    assert done


def _refusals(admin: redis.Redis) -> int:
    counts: dict[str, dict[str, int]] = admin.info("errorstats")
    return sum(count["count"] for name, count in counts.items() if "NOREPLICAS" in name)


def test_running_jobs_outlast_a_redis_that_takes_no_writes(
    start: StartWorker, own_redis: LocalRedisServer, admin: redis.Redis, namespace: str
) -> None:
    worker = start(IMAGEFLEET_REDIS_URL=own_redis.url, IMAGEFLEET_MODEL="fake:seconds=1")
    with Client(own_redis.url, namespace=namespace) as producer:
        jobs = producer.submit_many([f"prompt {n}" for n in range(4)], num_inference_steps=15)
        until(lambda: all(job.status().state is State.RUNNING for job in jobs), 60)
        admin.config_set(*_TOO_FEW_REPLICAS)
        worker.await_log("does not answer the lease keeper: NOREPLICAS")
        until(lambda: _refusals(admin) > 20)
        with pytest.raises(BrokerUnavailable, match="takes no writes for now"):
            producer.submit("one more")
        admin.config_set(*_ENOUGH)
        for _ in producer.as_completed(jobs, timeout=60):
            pass
        assert {job.status().state for job in jobs} == {State.SUCCEEDED}
        until(lambda: not any(admin.hlen(key) for key in admin.scan_iter("*:claims:*")))


@pytest.mark.parametrize(
    "said",
    [
        "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist",
        "Command # 1 (SET a 1) of pipeline caused error: NOREPLICAS Not enough good replicas",
        "Transaction discarded because of: MISCONF Errors writing to the AOF file",
        "Error running script (call to f_a): @user_script:3: @user_script: 3: -OOM command not",
    ],
)
def test_a_refusal_that_passes_is_known_however_it_is_wrapped(said: str) -> None:
    assert is_temporary(redis.ResponseError(said))


@pytest.mark.parametrize("said", ["WRONGTYPE Operation", "unknown command 'MISCONF '", ""])
def test_an_error_that_does_not_pass_is_not_tried_for_ever(said: str) -> None:
    def refused() -> None:
        raise redis.ResponseError(said)

    retry = RetryUntilWritable(NoBackoff(), RETRY_FOREVER, (WritesRefused,))
    with pytest.raises(redis.ResponseError):
        retry.call_with_retry(refused, lambda _: None)


def test_a_user_without_the_right_is_told_so(
    own_redis: LocalRedisServer, admin: redis.Redis
) -> None:
    admin.execute_command("ACL", "SETUSER", "few", "on", ">hunter2", "~other", "+@all")
    with pytest.raises(BrokerUnavailable, match=r"rights of docs/redis\.md") as told:
        Client(f"{own_redis.url}?username=few&password=hunter2").submit("a")
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sentinel://:pw@127.0.0.1:1/fleet?sentinel_password=hunter2", "no Sentinel of 127.0.0.1"),
        ("redis://127.0.0.1:1/0?password=a@hunter2", "does not answer"),
    ],
)
def test_no_message_shows_a_password(url: str, says: str) -> None:
    with pytest.raises(BrokerUnavailable, match=says) as told:
        Client(url).check()
    assert "hunter2" not in str(told.value)
    assert "pw" not in str(told.value)


def test_a_password_that_was_not_quoted_does_not_show() -> None:
    with pytest.raises(ConfigurationError, match="port is no number") as told:
        Client("redis://:hunter2?more@localhost/0")
    assert "hunter2" not in str(told.value)


def test_sentinels_that_want_a_password_get_it_from_celery_too(
    start: StartWorker, tmp_path: Path, namespace: str
) -> None:
    with WatchedPair(tmp_path, password="of the watchers") as pair:
        with pytest.raises(BrokerUnavailable, match="no Sentinel"):
            Client(pair.url.partition("?")[0]).check()
        start(IMAGEFLEET_REDIS_URL=pair.url)
        with (
            Client(pair.url, namespace=namespace) as producer,
            Celery(backend=celery_url(pair.url), set_as_current=False) as app,
        ):
            app.conf.result_backend_transport_options = transport_options(pair.url)
            job = producer.submit("a")
            assert job.result(timeout=60).images
            assert AsyncResult(job.id, app=app).get(timeout=60)["images"]
