"""The images of a job are charged to the quota of its key once, and stay charged if it may be
accepted."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import httpx

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.access.image_quota import ImageQuota
from imagefleet.producer.gateway.access.keys import ApiKeys
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker
from tests.support.redis import TcpServer


def test_the_images_of_a_job_whose_fate_is_unknown_stay_charged(
    start: StartWorker, tmp_path: Path
) -> None:
    with TcpServer(tmp_path / "own", "--requirepass", "secret") as server:
        admin = server.client(password="secret")
        admin.execute_command("ACL", "SETUSER", "fleet", "on", ">secret", "~*", "&*", "+@all")
        url = f"redis://fleet:secret@127.0.0.1:{server.port}/0"
        with Client(url) as producer:
            keys = ApiKeys(producer.connection)
            key = keys.create("a", "gold", [Scope.SUBMIT], images_per_day=1)
        gateway = start_gateway(
            start,
            IMAGEFLEET_REDIS_URL=url,
            IMAGEFLEET_NAMESPACE="imagefleet",
            IMAGEFLEET_HTTP_REQUIRE_KEYS="true",
            IMAGEFLEET_HTTP_WAIT_S="0.1",
        )

        def ask(prompt: str) -> tuple[int, str]:
            address, headers = f"{gateway.url}/v1/images/generations", {"x-api-key": key}
            answer = httpx.post(address, json={"prompt": prompt}, headers=headers, timeout=300)
            return answer.status_code, answer.json()["error"]["code"]

        admin.execute_command("ACL", "SETUSER", "fleet", "-lpush")  # breaks within the submission
        assert ask("a") == (503, "broker_unavailable")
        admin.execute_command("ACL", "SETUSER", "fleet", "+lpush")
        assert ask("b") == (429, "quota_used")


def test_equal_requests_at_two_gateways_at_the_same_moment_are_charged_once(
    start: StartWorker, producer: Client
) -> None:
    rounds = 20
    keys = ApiKeys(producer.connection)
    key = keys.create("a", "gold", [Scope.SUBMIT], images_per_day=2 * rounds)
    gateways = [start_gateway(start, IMAGEFLEET_HTTP_REQUIRE_KEYS="true") for _ in range(2)]
    together = Barrier(len(gateways))

    def order(gateway: GatewayProcess) -> list[int]:
        statuses = []
        body = {"input": {"prompt": "a", "num_outputs": 2}}
        with httpx.Client(base_url=gateway.url, headers={"x-api-key": key}, timeout=300) as client:
            for number in range(rounds):
                together.wait(300)
                headers = {"idempotency-key": f"order {number}"}
                statuses.append(client.post("/v1/predictions", json=body, headers=headers))
        return [each.status_code for each in statuses]

    with ThreadPoolExecutor(len(gateways)) as threads:
        statuses = list(threads.map(order, gateways))
    assert statuses == [[201] * rounds] * 2
    assert len(list(producer.jobs())) == rounds
    caller = Caller.of(keys.list()[0], time.time())
    assert ImageQuota(producer.connection).used(caller) == 2 * rounds
