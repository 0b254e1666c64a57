"""How many connections to Redis a worker opens: the server has places for so many."""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest
import redis

from imagefleet import Client
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.connection import RETRY_FOREVER, connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.startup.redis_clients import MAX_SHARED_CONNECTIONS
from tests.support.jobs import finish
from tests.support.processes import Worker
from tests.support.settings import worker_settings

MAX_CONNECTIONS = 10
"""Of a worker; docs/redis.md says so."""
THREADS = 24


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalRedisServer]:
    """Return a server of the test's own, whose connections can be counted."""
    with LocalRedisServer(tmp_path / "redis") as server:
        yield server


def _connections(client: redis.Redis) -> int:
    """Return how many connections the server has, without that of `client`."""
    return len(client.client_list()) - 1


def test_a_worker_has_few_connections_while_it_is_idle_and_while_it_works(
    server: LocalRedisServer, tmp_path: Path
) -> None:
    settings = worker_settings(
        server.url,
        tmp_path,
        IMAGEFLEET_MODEL="fake:seconds=0.02,capacity=16",
        IMAGEFLEET_CALLBACK_ALLOW="127.0.0.1",
    )
    watcher = connect(server.url)
    worker = Worker(tmp_path, settings)
    try:
        worker.await_log("ready after")
        assert 0 < _connections(watcher) <= MAX_CONNECTIONS
        with Client(server.url) as producer:
            hook = "http://127.0.0.1:9/nobody-listens"
            jobs = [producer.submit("a", callback_url=hook) for _ in range(128)]
            assert finish(producer, jobs) == {State.SUCCEEDED}
        # Clients keep the connections that they have opened, so this is the most there were.
        assert 0 < _connections(watcher) <= MAX_CONNECTIONS
        assert worker.terminate() == 0
    finally:
        worker.kill()
        print(worker.output()[-3000:])


def test_threads_of_a_client_share_its_connections(server: LocalRedisServer) -> None:
    watcher = connect(server.url)
    client = connect(server.url, max_connections=MAX_SHARED_CONNECTIONS)

    def work(number: int) -> None:
        for turn in range(20):
            with client.pipeline(transaction=turn % 2 == 0) as pipe:
                pipe.incr("count")
                pipe.execute()

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    assert client.get("count") == str(20 * THREADS)
    assert _connections(watcher) <= MAX_SHARED_CONNECTIONS


def test_threads_that_wait_for_a_dead_server_all_go_on_once_it_is_back(
    server: LocalRedisServer,
) -> None:
    client = connect(server.url, retries=RETRY_FOREVER, max_connections=2)
    client.set("count", 0)
    server.kill()
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(client.incr, "count") for _ in range(THREADS)]
        time.sleep(0.5)  # some have a connection that is dead, the others wait for one
        server.start()
        for future in futures:
            future.result(timeout=900)
    assert int(client.get("count") or 0) >= THREADS


def test_connections_that_fail_leave_their_places_to_others(server: LocalRedisServer) -> None:
    client = connect(server.url, retries=0, max_connections=1)
    server.kill()
    for _ in range(3):
        with pytest.raises(redis.ConnectionError):
            client.ping()
    server.start()
    assert client.ping()


def test_a_signal_handler_gets_a_connection_while_its_thread_waits_for_one(
    server: LocalRedisServer,
) -> None:
    client = connect(server.url, max_connections=1)
    held = client.connection_pool.get_connection()
    answers: list[bool] = []

    def handle(_number: int, _frame: FrameType | None) -> None:
        client.connection_pool.release(held)
        answers.append(client.ping())

    previous = signal.signal(signal.SIGUSR1, handle)
    try:
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(0.3, signal.pthread_kill, [main, signal.SIGUSR1])
        timer.start()
        assert client.ping()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert answers == [True]
