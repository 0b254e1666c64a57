"""The images of a job that may have been accepted stay charged to the quota of its key."""

from pathlib import Path

import httpx

from imagefleet import Client
from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.keys import ApiKeys
from tests.support.gateway import start_gateway
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
