"""A connection that breaks in the midst of a command finds the new master."""

from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from imagefleet.shared.redis_client.sentinel_connection import SentinelMasterConnection
from tests.support.redis import TcpServer


class Watchers:
    """What the pool asks of Sentinels, answered from memory."""

    def __init__(self, master: TcpServer) -> None:
        self.master = master

    def discover_master(self, service: str) -> tuple[str, int]:
        return "127.0.0.1", self.master.port


def test_a_command_whose_master_died_goes_to_the_new_one(tmp_path: Path) -> None:
    with TcpServer(tmp_path / "old") as old, TcpServer(tmp_path / "new") as new:
        watchers = Watchers(old)
        pool = SentinelConnectionPool(
            "fleet",
            watchers,
            connection_class=SentinelMasterConnection,
            retry=Retry(NoBackoff(), retries=3),
        )
        with redis.Redis(connection_pool=pool, single_connection_client=True) as client:
            assert client.ping()  # from now on it holds its connection
            old.kill()
            watchers.master = new
            client.set("key", "value")
        assert new.client().get("key") == "value"
