"""A connection that breaks during a command connects to the new master."""

from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from imagefleet.shared.redis_client.sentinel_connection import SentinelMasterConnection
from tests.support.redis import TcpServer


class FakeSentinels:
    """Sentinels that answer the connection pool from memory."""

    def __init__(self, master: TcpServer) -> None:
        self.master = master

    def discover_master(self, service: str) -> tuple[str, int]:
        return "127.0.0.1", self.master.port


def test_a_command_goes_to_the_new_master_after_the_old_one_died(tmp_path: Path) -> None:
    with TcpServer(tmp_path / "old") as old, TcpServer(tmp_path / "new") as new:
        sentinels = FakeSentinels(old)
        pool = SentinelConnectionPool(
            "fleet",
            sentinels,
            connection_class=SentinelMasterConnection,
            retry=Retry(NoBackoff(), retries=3),
        )
        with redis.Redis(connection_pool=pool, single_connection_client=True) as client:
            assert client.ping()  # the client keeps this connection
            old.kill()
            sentinels.master = new
            client.set("key", "value")
        assert new.client().get("key") == "value"
