"""The fleet on Redis as operators run it: TLS, restricted users, Sentinel, full memory."""

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult

from imagefleet import Client, Job
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.celery_message import TASK_NAME
from imagefleet.shared.jobs.message_arguments import pack
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.connection import RETRY_FOREVER, celery_url, connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.certificates import make_certificate
from tests.support.control_messages import remote_control_app
from tests.support.jobs import finish
from tests.support.processes import ROOT, StartWorker, until
from tests.support.redis import RedisProxy, SentinelPair, TcpServer

_ACL_PAGE = "docs/redis.md"


def _all_succeed(producer: Client, jobs: list[Job], timeout: float = 300) -> bool:
    return finish(producer, jobs, timeout) == {State.SUCCEEDED}


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    return make_certificate(tmp_path, "localhost")


@pytest.fixture
def tls_url(own_redis: LocalRedisServer, certificate: tuple[ssl.SSLContext, Path]) -> Iterator[str]:
    context, trusted = certificate
    door = RedisProxy(own_redis.url.removeprefix("unix://"), context)
    yield f"rediss://localhost:{door.port}/0?ssl_ca_certs={trusted}"
    door.close()


def test_the_fleet_runs_over_tls(start: StartWorker, tls_url: str, namespace: str) -> None:
    start(IMAGEFLEET_REDIS_URL=tls_url)
    producer = Client(tls_url, namespace=namespace)
    assert _all_succeed(producer, producer.submit_many(["a", "b"], tenant="gold"))


def test_an_untrusted_certificate_is_refused(tls_url: str) -> None:
    with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
        Client(tls_url.partition("?")[0]).submit("a")


@pytest.fixture
def restricted_url(tmp_path: Path, namespace: str) -> Iterator[str]:
    """The address of a Redis for a user with exactly the rights that docs/redis.md grants."""
    page = (ROOT / _ACL_PAGE).read_text()
    [rights] = [line for line in page.splitlines() if line.startswith("ACL SETUSER")]
    words = rights.replace("imagefleet:", f"{namespace}:").replace("imagefleet.", f"{namespace}.")
    with TcpServer(tmp_path / "guarded", "--requirepass", "admin's") as server:
        server.client(password="admin's").execute_command(*words.split())
        yield f"redis://fleet:a-long-password@127.0.0.1:{server.port}/0"


def test_a_user_with_the_documented_rights_suffices(
    start: StartWorker, restricted_url: str, namespace: str
) -> None:
    worker = start(IMAGEFLEET_REDIS_URL=restricted_url)
    producer = Client(restricted_url, namespace=namespace)
    producer.tenants.set_weight("gold", 2)
    jobs = producer.submit_many(["a", "b"], tenant="gold")
    assert _all_succeed(producer, jobs)
    with Celery(backend=celery_url(restricted_url), set_as_current=False) as app:
        assert AsyncResult(jobs[0].id, app=app).get(timeout=900)["images"]
    with remote_control_app(restricted_url, namespace) as app:
        assert app.control.ping(timeout=5, limit=1)
    assert worker.terminate() == 0
    assert "permission" not in worker.output().lower()


def test_that_user_cannot_access_other_keys(restricted_url: str) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        connect(restricted_url).set("other", "1")


def test_a_wrong_password_is_one_clear_sentence(restricted_url: str) -> None:
    wrong = restricted_url.replace("a-long-password", "guess")
    with pytest.raises(BrokerUnavailable, match="refuses the credentials") as refused:
        Client(wrong).submit("a")
    assert "guess" not in str(refused.value)


def test_a_sentinel_failover_loses_no_job(
    start: StartWorker, namespace: str, tmp_path: Path
) -> None:
    with SentinelPair(tmp_path) as pair:
        worker = start(IMAGEFLEET_REDIS_URL=pair.url, IMAGEFLEET_MODEL="fake:seconds=0.1")
        producer = Client(pair.url, namespace=namespace)
        before = producer.submit_many([f"before {n}" for n in range(320)])
        done = _make_done_counter(producer, before)
        assert pair.master.client().wait(1, 60_000)  # until the replica has all accepted jobs
        pair.cut_replication()
        known = done()
        until(lambda: done() >= known + 8)  # the failover will lose these ends
        pair.fail_over()
        after = producer.submit_many([f"after {n}" for n in range(8)])
        assert _all_succeed(producer, [*before, *after], timeout=900)
        assert worker.process.poll() is None


def test_scripts_are_sent_again_after_the_server_lost_them(
    start: StartWorker, producer: Client, client: redis.Redis
) -> None:
    start()
    assert _all_succeed(producer, [producer.submit("a")])
    client.script_flush()
    assert _all_succeed(producer, producer.submit_many(["b", "c"]))


def test_workers_announce_their_model_again_to_a_redis_that_was_emptied(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str
) -> None:
    start().await_log("ready after")  # it has joined the fleet and announced its model
    offers = f"{namespace}:catalogue"
    before = client.hgetall(offers)
    assert before
    client.delete(*client.keys(f"{namespace}*"))
    until(lambda: client.hgetall(offers) == before)
    assert producer.submit("a prompt").result(timeout=60).images


def test_a_full_redis_refuses_jobs_and_loses_none(
    start: StartWorker, own_redis: LocalRedisServer, namespace: str
) -> None:
    admin = connect(own_redis.url)
    worker = start(IMAGEFLEET_REDIS_URL=own_redis.url, IMAGEFLEET_MODEL="fake:seconds=0.05")
    producer = Client(own_redis.url, namespace=namespace)
    assert _all_succeed(producer, [producer.submit("warm")])
    jobs = producer.submit_many([f"prompt {n}" for n in range(64)])
    admin.config_set("maxmemory", "1mb")  # less than Redis holds already
    with pytest.raises(BrokerUnavailable, match="full and took nothing"):
        producer.submit("one too many", id="too-many")
    submitting = threading.Thread(target=lambda: _submit_until_accepted(producer))
    submitting.start()
    worker.await_log("is not renewed: Redis is full")
    admin.config_set("maxmemory", "0")
    submitting.join(timeout=900)
    assert producer.get("too-many").status().request.prompt == "one too many"
    assert _all_succeed(producer, [*jobs, producer.get("too-many")])
    until(lambda: not admin.exists(list_key(f"{namespace}.default.native", 3)))


def test_a_tenants_job_from_plain_celery_is_found_once_its_queue_is_known(
    start: StartWorker, producer: Client, client: redis.Redis, settings: dict[str, str]
) -> None:
    worker, namespace = start(), settings["IMAGEFLEET_NAMESPACE"]
    worker.await_log("ready after")
    queue, known = f"{namespace}.default.native@gold", known_queues_key(namespace)
    client.sadd(known, queue)
    until(lambda: not client.sismember(known, queue))  # a worker removes it: the queue is empty
    url = celery_url(settings["IMAGEFLEET_REDIS_URL"])
    with Celery(broker=url, set_as_current=False) as app:
        request = pack(JobRequest(prompt="a"))
        app.send_task(TASK_NAME, task_id="late", kwargs=request, queue=queue)
        client.sadd(known, queue)  # after the push, as docs/redis.md requires
        until(lambda: producer.statuses(["late"]))
        assert producer.get("late").result(timeout=900).images


def test_a_job_for_a_model_whose_workers_start_later_waits_for_them(
    start: StartWorker, producer: Client
) -> None:
    early = producer.submit("a", model="other/model")
    start()
    assert producer.submit("b").result(timeout=900).images
    assert early.status().state is State.QUEUED


def _keep_busy(server: LocalRedisServer) -> threading.Thread:
    """Run a script without end, until SCRIPT KILL."""

    def run() -> None:
        with connect(server.url, retries=0) as client, suppress(redis.ResponseError):
            client.eval("while true do end", 0)  # SCRIPT KILL makes it an error

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_failed_health_check_over_a_unix_socket_is_retried(own_redis: LocalRedisServer) -> None:
    admin = connect(own_redis.url, retries=0)
    admin.config_set("lua-time-limit", "1")
    client = connect(f"{own_redis.url}?health_check_interval=1", retries=RETRY_FOREVER)
    client.ping()
    time.sleep(1.1)  # so that the next command checks the connection first
    script = _keep_busy(own_redis)
    until(lambda: _is_busy(admin))
    threading.Timer(1, admin.script_kill).start()
    client.set("a", "1")
    script.join(timeout=900)
    assert admin.get("a") == "1"


def _is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


def test_a_worker_survives_a_busy_server_on_a_unix_socket(
    start: StartWorker, own_redis: LocalRedisServer, namespace: str
) -> None:
    admin = connect(own_redis.url, retries=0)
    admin.config_set("lua-time-limit", "1")
    url = f"{own_redis.url}?health_check_interval=1"
    worker = start(IMAGEFLEET_REDIS_URL=url, IMAGEFLEET_LEASE_S="8")
    producer = Client(own_redis.url, namespace=namespace)
    assert _all_succeed(producer, [producer.submit("a")])
    script = _keep_busy(own_redis)
    until(lambda: _is_busy(admin))
    time.sleep(4)
    admin.script_kill()
    script.join(timeout=900)
    assert _all_succeed(producer, [producer.submit("b")])
    assert worker.process.poll() is None, worker.output()


@pytest.mark.parametrize("place", ["user", "option"])
def test_a_password_over_a_unix_socket_may_be_an_option(
    start: StartWorker, own_redis: LocalRedisServer, namespace: str, place: str
) -> None:
    connect(own_redis.url).config_set("requirepass", "p@ss?")
    path = own_redis.url.removeprefix("unix://")
    secret = "p%40ss%3F"
    urls = {
        "user": f"unix://:{secret}@{path}?db=1",
        "option": f"unix://{path}?db=1&password={secret}",
    }
    worker = start(IMAGEFLEET_REDIS_URL=urls[place])
    producer = Client(urls[place], namespace=namespace)
    job = producer.submit("a")
    assert _all_succeed(producer, [job])
    with Celery(backend=celery_url(urls[place]), set_as_current=False) as app:
        assert AsyncResult(job.id, app=app).get(timeout=900)["images"]
    assert worker.terminate() == 0


def _make_done_counter(producer: Client, jobs: list[Job]) -> Callable[[], int]:
    def done() -> int:
        return sum(each.done for each in producer.statuses(job.id for job in jobs))

    until(done)
    return done


def _submit_until_accepted(producer: Client) -> None:
    """Repeat the same call with the same id until it is accepted, as a producer does."""

    def accepted() -> bool:
        try:
            return bool(producer.submit("one too many", id="too-many", seed=1))
        except BrokerUnavailable:
            return False

    until(accepted)
