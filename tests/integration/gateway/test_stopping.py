"""A gateway that is told to stop ends its streams itself, and no job with it."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import redis

from imagefleet import Client
from tests.support.gateway import start_gateway
from tests.support.processes import StartWorker, until


def _stream(url: str) -> list[str]:
    body = {"prompt": "slow", "stream": True, "partial_images": 1}
    path = f"{url}/v1/images/generations"
    with httpx.stream("POST", path, json=body, timeout=900) as answer:
        return list(answer.iter_lines())


def test_streams_end_with_a_last_event_and_waiting_requests_are_told_to_come_again(
    start: StartWorker, producer: Client
) -> None:
    start(IMAGEFLEET_MODEL="fake:seconds=600").await_log("ready after")
    gateway = start_gateway(start)
    path = f"{gateway.url}/v1/images/generations"
    with ThreadPoolExecutor() as threads:
        stream = threads.submit(_stream, gateway.url)
        waiting = threads.submit(httpx.post, path, json={"prompt": "b"}, timeout=900)
        until(lambda: len(list(producer.jobs())) == 2)
        assert gateway.process.terminate() in (0, -signal.SIGTERM)
        [last] = [line for line in stream.result() if line.startswith("data: ")][-1:]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stopping"
        answer = waiting.result()
    assert answer.status_code == 503
    assert answer.headers["x-should-retry"] == "true"
    assert int(answer.headers["retry-after"]) == 1
    assert all(not job.done for job in producer.jobs())


def test_a_client_that_goes_leaves_nothing_behind(
    start: StartWorker, client: redis.Redis, namespace: str, producer: Client
) -> None:
    start(IMAGEFLEET_MODEL="fake:seconds=600").await_log("ready after")
    gateway = start_gateway(start)
    path = f"{gateway.url}/v1/images/generations"
    for body in ({"prompt": "a"}, {"prompt": "b", "stream": True}):
        with suppress(httpx.TimeoutException):
            httpx.post(path, json=body, timeout=3)
    assert len(list(producer.jobs())) == 2
    until(lambda: client.pubsub_channels(f"{namespace}:changes:*") == [])


def test_a_port_in_use_is_named_and_nothing_else_is_logged(start: StartWorker) -> None:
    port = urlsplit(start_gateway(start).url).port
    second = start("-m", "imagefleet.producer", "serve", "--port", str(port))
    assert second.wait(900) == 1
    assert f"--port {port}: cannot listen on 127.0.0.1" in second.output()
    assert "Traceback" not in second.output()


def test_a_request_that_waits_without_a_worker_leaves_a_warning(
    start: StartWorker, producer: Client
) -> None:
    gateway = start_gateway(start)
    path = f"{gateway.url}/v1/images/generations"
    for _ in range(2):
        with suppress(httpx.TimeoutException):
            httpx.post(path, json={"prompt": "a"}, timeout=3)
    warnings = [line for line in gateway.process.output().splitlines() if "no worker" in line]
    assert len(warnings) == 1
