"""What a request for a job costs while it waits, and what it says if the job goes."""

import asyncio
from collections.abc import Iterator

import pytest

from imagefleet.producer.gateway.access.caller import LOOPBACK
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.producer.gateway.problems import Problem
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.local_server import LocalRedisServer


@pytest.fixture
def gateway(redis_server: LocalRedisServer, namespace: str) -> Iterator[Gateway]:
    settings = GatewaySettings.load(redis_url=redis_server.url, namespace=namespace)
    gateway = Gateway(settings, require_keys=False)
    yield gateway
    gateway.close()


def test_a_wait_reads_the_record_of_a_job_that_has_ended_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.client.submit("a", id="cat")
    gateway.client.cancel("cat")
    connection, reads = gateway.client.connection, []
    read = connection.read_statuses

    def read_and_note(ids: list[str]) -> object:
        reads.append(ids)
        return read(ids)

    monkeypatch.setattr(connection, "read_statuses", read_and_note)
    status = asyncio.run(gateway.jobs.wait(LOOPBACK, "cat", 900))
    assert (status.state, reads) == (State.CANCELLED, [["cat"]])


def test_a_wait_for_a_job_that_was_deleted_names_it_as_its_caller_does(gateway: Gateway) -> None:
    with pytest.raises(Problem, match="there is no job 'cat'") as unknown:
        asyncio.run(gateway.jobs.wait(LOOPBACK, "cat", 900))
    assert unknown.value.status == 404
