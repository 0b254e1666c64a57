"""A gateway counts its requests by route, and lets jobs belong to the trace of their caller."""

import re

import httpx
import redis
from prometheus_client.parser import text_string_to_metric_families

from imagefleet import Client
from imagefleet.shared.jobs.celery_message import trace_parent_of
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker, Worker, until

_PATH = "/v1/images/generations"
_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def _samples(gateway: GatewayProcess) -> dict[tuple[str, ...], float]:
    """Return the values of a gateway's own metrics by name and labels."""
    [port] = re.findall(r"metrics on 127.0.0.1 port (\d+)", gateway.process.output())
    page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return {
        (
            each.name,
            *(value for label, value in each.labels.items() if label != "fleet"),
        ): each.value
        for family in text_string_to_metric_families(page)
        for each in family.samples
    }


def test_requests_refusals_and_streams_are_counted(
    start: StartWorker, worker: Worker, producer: Client
) -> None:
    gateway = start_gateway(
        start,
        IMAGEFLEET_HTTP_METRICS_PORT="0",
        IMAGEFLEET_HTTP_METRICS_HOST="127.0.0.1",
    )
    made = httpx.post(gateway.url + _PATH, json={"prompt": "a"}, timeout=300).json()
    file = f"{gateway.url}/v1/images/{made['id']}"
    assert httpx.get(f"{file}/0.png").status_code == 200
    assert httpx.get(f"{file}/7.png").status_code == 404
    assert httpx.get(f"{gateway.url}/nothing/{made['id']}").status_code == 404
    assert httpx.post(gateway.url + _PATH, content=b"{").status_code == 415
    assert httpx.request("FORGED", gateway.url + _PATH).status_code == 405
    prefix = "imagefleet_http_"
    samples = _samples(gateway)
    route = "/v1/images/{job_id}/{file}"
    for labels in [
        ("POST", _PATH, "200"),
        ("POST", _PATH, "415"),
        ("GET", route, "200"),
        ("GET", route, "404"),
        ("GET", "none", "404"),
    ]:
        assert samples[prefix + "requests_total", *labels] == 1, labels
    assert samples[prefix + "refused_total", "unsupported_media_type"] == 1
    assert samples[prefix + "request_seconds_count", route] == 2
    assert samples[prefix + "open_streams",] == samples[prefix + "watched_jobs",] == 0
    assert not any(made["id"] in "".join(labels) or "FORGED" in labels for labels in samples)

    worker.freeze()
    body = {"prompt": "b", "stream": True}
    with httpx.stream("POST", gateway.url + _PATH, json=body, timeout=300) as answer:
        assert answer.status_code == 200
        until(lambda: _samples(gateway)[prefix + "watched_jobs",] == 1)
        assert _samples(gateway)[prefix + "open_streams",] == 1
    until(lambda: _samples(gateway)[prefix + "open_streams",] == 0)
    until(lambda: _samples(gateway)[prefix + "watched_jobs",] == 0)


def test_a_job_belongs_to_the_trace_of_its_caller(
    start: StartWorker, client: redis.Redis, namespace: str
) -> None:
    gateway = start_gateway(start, IMAGEFLEET_HTTP_WAIT_S="0.1")
    for given in (_TRACE, "00-rubbish", None):
        headers = {"traceparent": given} if given else {}
        body = {"prompt": f"of {given}"}
        assert httpx.post(gateway.url + _PATH, json=body, headers=headers).status_code == 504
    queues = [key for key in client.keys(f"{namespace}*") if client.type(key) == "list"]
    messages = [message for key in queues for message in client.lrange(key, 0, -1)]
    found = [trace_parent_of(each) for each in map(str, messages) if "imagefleet.render" in each]
    assert sorted(found, key=str) == [_TRACE, None, None]
