"""Redis takes no writes for a while, or refuses: workers wait, and errors say why."""

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
from tests.support.redis import SentinelPair

_REFUSE_WRITES = ("min-replicas-to-write", "1")
_ACCEPT_WRITES = ("min-replicas-to-write", "0")


@pytest.fixture
def admin(own_redis: LocalRedisServer) -> Iterator[redis.Redis]:
    with connect(own_redis.url) as client:
        yield client


def _command(client: redis.Redis) -> object:
    return client.set("a", "1")


def _transaction(client: redis.Redis) -> object:
    with client.pipeline(transaction=True) as pipe:
        pipe.set("a", "1")
        pipe.hset("b", "c", "d")
        return pipe.execute()


def _script(client: redis.Redis) -> object:
    add = load_script(client, "imagefleet.shared.webhooks", "outbox_add", outbox=True)
    return add(keys=["due", "messages"], args=["a", "{}"]) or True


@pytest.mark.parametrize("write", [_command, _transaction, _script])
def test_a_write_that_is_retried_forever_waits_until_redis_takes_it(
    own_redis: LocalRedisServer, admin: redis.Redis, write: Callable[[redis.Redis], object]
) -> None:
    admin.config_set(*_REFUSE_WRITES)
    with (
        connect(own_redis.url, retries=0) as without_retries,
        pytest.raises(redis.ResponseError, match="Not enough good replicas"),
    ):
        write(without_retries)
    results: list[object] = []
    with connect(own_redis.url, retries=RETRY_FOREVER) as retrying:
        waiting = threading.Thread(target=lambda: results.append(write(retrying)), daemon=True)
        refused = _count_refusals(admin)
        waiting.start()
        until(lambda: _count_refusals(admin) >= refused + 2)  # refused at first, then retried
        assert not results
        admin.config_set(*_ACCEPT_WRITES)
        waiting.join(timeout=900)
    assert results


def _count_refusals(admin: redis.Redis) -> int:
    counts: dict[str, dict[str, int]] = admin.info("errorstats")
    return sum(count["count"] for name, count in counts.items() if "NOREPLICAS" in name)


def test_running_jobs_succeed_after_redis_took_no_writes_for_a_while(
    start: StartWorker, own_redis: LocalRedisServer, admin: redis.Redis, namespace: str
) -> None:
    worker = start(IMAGEFLEET_REDIS_URL=own_redis.url, IMAGEFLEET_MODEL="fake:seconds=1")
    with Client(own_redis.url, namespace=namespace) as producer:
        jobs = producer.submit_many([f"prompt {n}" for n in range(4)], num_inference_steps=15)
        until(lambda: all(job.status().state is State.RUNNING for job in jobs))
        admin.config_set(*_REFUSE_WRITES)
        worker.await_log(
            "is not renewed: Redis takes no writes for now and took nothing: NOREPLICAS"
        )
        until(lambda: _count_refusals(admin) > 20)
        with pytest.raises(BrokerUnavailable, match="takes no writes for now"):
            producer.submit("one more")
        admin.config_set(*_ACCEPT_WRITES)
        for _ in producer.as_completed(jobs, timeout=900):
            pass
        assert {job.status().state for job in jobs} == {State.SUCCEEDED}
        until(lambda: not any(admin.hlen(key) for key in admin.scan_iter("*:claims:*")))


@pytest.mark.parametrize(
    "message",
    [
        "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist",
        "Command # 1 (SET a 1) of pipeline caused error: NOREPLICAS Not enough good replicas",
        "Transaction discarded because of: MISCONF Errors writing to the AOF file",
        "Error running script (call to f_a): @user_script:3: @user_script: 3: -OOM command not",
    ],
)
def test_a_temporary_error_is_recognized_in_every_wrapping(message: str) -> None:
    assert is_temporary(redis.ResponseError(message))


@pytest.mark.parametrize("message", ["WRONGTYPE Operation", "unknown command 'MISCONF '", ""])
def test_a_permanent_error_is_not_retried(message: str) -> None:
    def fail() -> None:
        raise redis.ResponseError(message)

    retry = RetryUntilWritable(NoBackoff(), RETRY_FOREVER, (WritesRefused,))
    with pytest.raises(redis.ResponseError):
        retry.call_with_retry(fail, lambda _: None)


def test_the_error_for_missing_rights_names_the_document(
    own_redis: LocalRedisServer, admin: redis.Redis
) -> None:
    admin.execute_command("ACL", "SETUSER", "limited", "on", ">hunter2", "~other", "+@all")
    with pytest.raises(BrokerUnavailable, match=r"rights of docs/redis\.md") as raised:
        Client(f"{own_redis.url}?username=limited&password=hunter2").submit("a")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("sentinel://:pw@127.0.0.1:1/fleet?sentinel_password=hunter2", "no Sentinel of 127.0.0.1"),
        ("redis://127.0.0.1:1/0?password=a%40hunter2", "does not answer"),
    ],
)
def test_connection_errors_show_no_password(url: str, sentence: str) -> None:
    with pytest.raises(BrokerUnavailable, match=sentence) as raised:
        Client(url).check()
    assert "hunter2" not in str(raised.value)
    assert "pw" not in str(raised.value)


def test_a_password_that_was_not_quoted_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="in a password write %23") as raised:
        Client("redis://:hunter2?more@localhost/0")
    assert "hunter2" not in str(raised.value)


def test_celery_also_sends_the_password_of_the_sentinels(
    start: StartWorker, tmp_path: Path, namespace: str
) -> None:
    with SentinelPair(tmp_path, password="of the sentinels") as pair:
        with pytest.raises(BrokerUnavailable, match="no Sentinel"):
            Client(pair.url.partition("?")[0]).check()
        start(IMAGEFLEET_REDIS_URL=pair.url)
        with (
            Client(pair.url, namespace=namespace) as producer,
            Celery(backend=celery_url(pair.url), set_as_current=False) as app,
        ):
            app.conf.result_backend_transport_options = transport_options(pair.url)
            job = producer.submit("a")
            assert job.result(timeout=900).images
            assert AsyncResult(job.id, app=app).get(timeout=900)["images"]
