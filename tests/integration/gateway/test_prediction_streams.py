"""The events of predictions: for Replicate's client, in full, and again from any gateway."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from replicate.client import Client as ReplicateClient

from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import StartWorker

SLOW = {"prompt": "a", "num_inference_steps": 100, "preview": True}


@pytest.fixture
def slow_gateway(start: StartWorker, settings: dict[str, str]) -> GatewayProcess:
    """A gateway whose worker takes five seconds for a job of 100 steps, after the job is there."""
    settings["IMAGEFLEET_MODEL"] = "fake:seconds=0.05,capacity=8"
    return start_gateway(start)


def _create(gateway: GatewayProcess, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.put(f"{gateway.url}/v1/predictions/{name}", json={"input": inputs}, timeout=900)
    answer.raise_for_status()
    prediction: dict[str, Any] = answer.json()
    return prediction


def _events(
    gateway: GatewayProcess, path: str, after: str | None = None
) -> Iterator[tuple[str, str, str]]:
    """Yield id, name and data of each event."""
    headers = {} if after is None else {"last-event-id": after}
    url = f"{gateway.url}/v1/predictions/{path}"
    with httpx.stream("GET", url, headers=headers, timeout=900) as answer:
        yield from _read(answer)


def _read(answer: httpx.Response) -> Iterator[tuple[str, str, str]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    event: dict[str, str] = {}
    for line in answer.iter_lines():
        if line.startswith(":"):
            continue
        if not line:
            if event:  # else the line belongs to a heartbeat
                yield event["id"], event["event"], event["data"]
            event = {}
            continue
        field, _, value = line.partition(": ")
        event[field] = value


def test_the_client_of_replicate_follows_a_prediction(
    slow_gateway: GatewayProcess, start: StartWorker
) -> None:
    client = ReplicateClient(api_token="any", base_url=slow_gateway.url)
    prediction = client.predictions.create(version="fake", input={**SLOW, "num_outputs": 2})
    start()
    events = list(prediction.stream())
    names = [each.event.value for each in events]
    assert names[-3:] == ["output", "output", "done"]
    assert set(names[:-3]) == {"logs"}
    assert all(httpx.get(str(each.data)).status_code == 200 for each in events[-3:-1])
    assert len({each.id for each in events}) == len(events)

    async def again() -> list[str]:
        prediction = await client.predictions.async_get(events_of)
        return [each.event.value async for each in prediction.async_stream()]

    events_of = prediction.id
    assert asyncio.run(again()) == ["logs", "output", "output", "done"]


def test_a_failure_is_an_error_in_the_stream(gateway: GatewayProcess) -> None:
    client = ReplicateClient(api_token="any", base_url=gateway.url)
    inputs = {"prompt": "a", "image": "http://127.0.0.1:9/no.png", "prompt_strength": 0.5}
    prediction = client.predictions.create(version="fake", input=inputs)
    with pytest.raises(RuntimeError, match="image"):
        list(prediction.stream())
    events = list(_events(gateway, f"{prediction.id}/stream"))
    assert [(name, data) for _, name, data in events][-1] == ("done", '{"reason": "error"}')


def test_our_events_tell_the_whole_way_of_a_job(
    slow_gateway: GatewayProcess, start: StartWorker
) -> None:
    _create(slow_gateway, "before", {"prompt": "a"})
    _create(slow_gateway, "cat", SLOW)
    events = _events(slow_gateway, "cat/events")
    _, name, data = next(events)
    assert (name, json.loads(data)["jobs_in_queue"]) == ("queued", 2)
    start()
    told = list(events)
    names = [name for _, name, _ in told]
    assert names[0] == "started"
    assert names[-2:] == ["uploaded", "done"]
    assert set(names[1:-2]) == {"step", "preview"}
    steps = [json.loads(data)["step"] for _, name, data in told if name == "step"]
    assert steps == sorted(set(steps))
    preview = next(json.loads(data) for _, name, data in told if name == "preview")
    assert preview["image"].startswith("data:image/")
    assert json.loads(told[-1][2])["status"] == "succeeded"
    assert httpx.get(json.loads(told[-2][2])["url"]).status_code == 200


def test_another_gateway_goes_on_after_the_last_event_without_a_repetition(
    slow_gateway: GatewayProcess, start: StartWorker
) -> None:
    _create(slow_gateway, "cat", SLOW)
    start()
    first = []
    for event in _events(slow_gateway, "cat/events"):
        first.append(event)
        if event[1] == "step":
            break
    slow_gateway.process.kill()
    other = start_gateway(start)
    rest = list(_events(other, "cat/events", after=first[-1][0]))
    ids = [event_id for event_id, _, _ in [*first, *rest]]
    assert len(set(ids)) == len(ids)
    assert [name for _, name, _ in rest][-2:] == ["uploaded", "done"]
    assert "started" not in {name for _, name, _ in rest}
    assert list(_events(other, "cat/events", after=rest[-1][0])) == []
    assert [name for _, name, _ in _events(other, "cat/events", after=rest[-2][0])] == ["done"]


@pytest.mark.parametrize(("path", "last"), [("stream", "error"), ("events", "stopping")])
def test_a_gateway_that_ends_says_so_in_its_streams(
    slow_gateway: GatewayProcess, path: str, last: str
) -> None:
    _create(slow_gateway, "cat", SLOW)
    url = f"{slow_gateway.url}/v1/predictions/cat/{path}"
    with httpx.stream("GET", url, timeout=900) as answer:
        slow_gateway.process.process.terminate()
        *before, (event_id, name, data) = _read(answer)
    assert (name, "ask again" in data, bool(event_id)) == (last, True, True)
    assert {each[1] for each in before} <= {"queued"}
    slow_gateway.process.wait()


def test_events_of_nobody_are_unknown(gateway: GatewayProcess) -> None:
    for path in ("stream", "events"):
        answer = httpx.get(f"{gateway.url}/v1/predictions/nobody/{path}")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
