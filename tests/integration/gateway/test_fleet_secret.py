"""The gateways of a fleet sign with the same secret, also after Redis has lost it."""

from pathlib import Path

import httpx
import redis

from imagefleet import Client
from imagefleet.producer.gateway.access.fleet_secret import FleetSecret
from imagefleet.producer.gateway.redis_keys import address_secret_key
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker, until


def test_gateways_agree_on_a_secret_after_it_was_lost_or_restored(
    producer: Client, client: redis.Redis, namespace: str
) -> None:
    key = address_secret_key(namespace)
    old, new = FleetSecret(producer.connection), FleetSecret(producer.connection)
    old.load()
    first = old.sign("a")

    client.delete(key)  # the old gateway notices first
    old.load()
    new.load()
    assert old.sign("a") == new.sign("a") == first

    client.delete(key)  # a new gateway starts before the old one notices
    newer = FleetSecret(producer.connection)
    newer.load()
    assert newer.sign("a") != first
    for each in (old, new):
        each.load()
        assert each.sign("a") == newer.sign("a")

    client.set(key, "restored")
    for each in (old, new, newer):
        each.load()
    assert len({each.sign("a") for each in (old, new, newer)}) == 1
    assert old.sign("a") not in (first, "")


def test_gateways_that_run_agree_again_after_redis_was_emptied(
    start: StartWorker, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    store = tmp_path / "files"
    store.mkdir()
    old = start_gateway(start, IMAGEFLEET_STORAGE_URL=f"file://{store}")
    assert _finds(old, _upload(old))
    client.delete(*client.scan_iter(f"{namespace}:*"))
    new = start_gateway(start, IMAGEFLEET_STORAGE_URL=f"file://{store}")
    until(lambda: _finds(new, _upload(old)))
    assert _finds(old, _upload(new))


def _upload(gateway: GatewayProcess) -> str:
    file = {"file": ("a.txt", b"content")}
    answer = httpx.post(
        f"{gateway.url}/v1/files", files=file, data={"purpose": "user_data"}, timeout=300
    )
    return str(answer.json()["id"])


def _finds(gateway: GatewayProcess, file_id: str) -> bool:
    """Return whether a gateway finds the file where it looks for those of the tenant."""
    return httpx.get(f"{gateway.url}/v1/files/{file_id}", timeout=300).status_code == 200
