"""What many tests share: a real Redis, and 8 virtual devices for JAX."""

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

# Before any test imports JAX: its CPU devices are counted once.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import pytest
import redis

from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer, find_server

# A shell that runs tests in the background has them ignore Ctrl-C, and so would what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"redis server: {find_server()}"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[LocalRedisServer]:
    """A real server of this test run's own, with append-only file."""
    folder = tempfile.mkdtemp(prefix="imagefleet-test-")
    with LocalRedisServer(Path(folder)) as server:
        yield server
    shutil.rmtree(folder)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[LocalRedisServer]:
    """A server that this test may kill and start again."""
    with LocalRedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def client(redis_server: LocalRedisServer) -> Iterator[redis.Redis]:
    client = connect(redis_server.url)
    yield client
    client.close()


@pytest.fixture
def namespace() -> str:
    """Keys of this test alone."""
    return f"t{uuid.uuid4().hex[:8]}"
