"""Fixtures of one test's fleet: settings, worker processes with the fake engine, and a client."""

from collections.abc import Callable, Iterator
from pathlib import Path

import kombu.pools
import pytest
import redis

from imagefleet import Client
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.queues.claims import Claims
from tests.support.processes import StartWorker, worker_processes
from tests.support.redis_cluster import RedisCluster
from tests.support.settings import worker_settings

MakeClaims = Callable[..., Claims]


@pytest.fixture
def make_claims(client: redis.Redis, redis_server: LocalRedisServer, namespace: str) -> MakeClaims:
    """Return a function that makes the claims of a worker and acquires its lease."""

    def make(worker: str, lease_s: float = 60) -> Claims:
        claims = Claims(
            no_retry_client=connect(redis_server.url, retries=0),
            retrying_client=client,
            namespace=namespace,
            worker=worker,
            lease_s=lease_s,
        )
        claims.lease.acquire()
        return claims

    return make


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three masters without replicas, for tests that end none of them."""
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _no_connections_of_earlier_tests() -> Iterator[None]:
    """Close the connections in Celery's pools: a test may cut all that the shared Redis has."""
    yield
    kombu.pools.reset()


@pytest.fixture
def settings(redis_server: LocalRedisServer, namespace: str, tmp_path: Path) -> dict[str, str]:
    return worker_settings(
        redis_server.url, tmp_path, IMAGEFLEET_NAMESPACE=namespace, IMAGEFLEET_LEASE_S="2"
    )


@pytest.fixture
def start(settings: dict[str, str], tmp_path: Path) -> Iterator[StartWorker]:
    with worker_processes(tmp_path, settings) as start:
        yield start


@pytest.fixture
def producer(redis_server: LocalRedisServer, namespace: str) -> Iterator[Client]:
    with Client(redis_server.url, namespace=namespace) as client:
        yield client
