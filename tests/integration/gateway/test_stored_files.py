"""Files that expire, and work that gateways share, in a real Redis and a store."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefleet import Client
from imagefleet.producer.gateway.access.fleet_secret import FleetSecret
from imagefleet.producer.gateway.files.due_times import DueTimes
from imagefleet.producer.gateway.files.tenant_files import TenantFiles
from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.redis_keys import files_expiring_key
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import until
from tests.support.redis import TcpServer


@pytest.fixture
def client(redis_server: LocalRedisServer, namespace: str, tmp_path: Path) -> Iterator[Client]:
    (tmp_path / "store").mkdir()
    url = f"file://{tmp_path}/store"
    with Client(redis_server.url, namespace=namespace, storage_url=url) as client:
        yield client


@pytest.fixture
def files(client: Client) -> TenantFiles:
    secret = FleetSecret(client.connection)
    secret.load()
    return TenantFiles(client.connection, secret, keep_s=3_600)


def _save(files: TenantFiles, tenant: str, name: str, keep_s: int | None = None) -> None:
    content = io.BytesIO(b"content")
    files.save(tenant, content, id=name, name=name, content_type="text/plain", keep_s=keep_s)


def test_an_expired_file_is_unknown_and_its_content_is_deleted(
    files: TenantFiles, client: Client
) -> None:
    store = client.connection.store()
    _save(files, "gold", "kept")
    _save(files, "gold", "expired", keep_s=0)
    with pytest.raises(Problem) as caught:
        files.find("gold", "expired")
    assert caught.value.status == 404
    assert [file.id for file in files.list("gold")] == ["kept"]
    assert until(files.delete_expired)
    assert not files.delete_expired()
    [key] = store.list("uploads/")
    assert key.endswith("/kept")


def test_each_tenant_has_files_of_its_own(files: TenantFiles) -> None:
    _save(files, "gold", "same")
    assert files.list("silver") == []
    _save(files, "silver", "same")
    files.delete("silver", "same")
    assert files.read("gold", files.find("gold", "same"), 100) == b"content"


def test_work_that_is_held_is_not_claimed_again_and_that_of_a_dead_holder_is(
    client: Client, namespace: str
) -> None:
    due = DueTimes(client.connection, f"{namespace}:test-due", claim_s=0.3)
    due.put("a", 0)
    assert (due.claim(), due.claim()) == ("a", None)
    with due.held("a"):
        renewed = client.connection.redis.zscore(f"{namespace}:test-due", "a")
        until(lambda: client.connection.redis.zscore(f"{namespace}:test-due", "a") != renewed)
        assert due.claim() is None
    assert until(due.claim) == "a"
    due.forget("a")
    assert due.claim() is None


def test_a_file_is_recorded_together_with_the_time_at_which_it_is_deleted_or_not_at_all(
    tmp_path: Path,
) -> None:
    (tmp_path / "store").mkdir()
    with TcpServer(tmp_path / "own", "--requirepass", "secret") as server:
        admin = server.client(password="secret")
        admin.execute_command("ACL", "SETUSER", "fleet", "on", ">secret", "~*", "&*", "+@all")

        class Content(io.BytesIO):
            """While it is stored, the gateway loses the right to write due times."""

            def read(self, size: int | None = -1) -> bytes:
                admin.execute_command("ACL", "SETUSER", "fleet", "-zadd")
                return super().read(size)

        url = f"redis://fleet:secret@127.0.0.1:{server.port}/0"
        with Client(url, storage_url=f"file://{tmp_path}/store") as client:
            secret = FleetSecret(client.connection)
            secret.load()
            files = TenantFiles(client.connection, secret, keep_s=3_600)
            with pytest.raises(BrokerUnavailable):
                files.save("gold", Content(b"a"), id="a", name="a", content_type="text/plain")
            assert files.list("gold") == []
            admin.execute_command("ACL", "SETUSER", "fleet", "+zadd")
            _save(files, "gold", "b")
            assert [file.id for file in files.list("gold")] == ["b"]
        due = [str(name) for name, _ in admin.zscan_iter(files_expiring_key("imagefleet"))]
        assert sorted(name[-1] for name in due) == ["a", "b"]
