"""Receivers are told of runs by real workers, which die, and by commands, over real HTTP."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import redis
import standardwebhooks
from click.testing import CliRunner

from imagefleet import AsyncClient, Client
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.commands.cli import main
from imagefleet.shared.bulk.redis_keys import run_key, search_throttle_key
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.webhooks.signature import new_secret
from tests.support.processes import StartWorker, until
from tests.support.receiver import Delivery, Receiver, respond_with
from tests.support.s3 import BUCKET, FaultyS3, error, forward, reply, signed_s3

SECRET, SECRET_OF_GOLD = new_secret(), new_secret()
PROMPTS = [f"prompt {n}" for n in range(30)]
ENDED = "run.ended"


@pytest.fixture
def settings(settings: dict[str, str]) -> dict[str, str]:
    """A worker makes 80 images a second, and counts them five times a second."""
    return {
        **settings,
        "IMAGEFLEET_MODEL": "fake:seconds=0.1,capacity=8",
        "IMAGEFLEET_BULK_CHECKPOINT_S": "0.2",
        "IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.1",
        "IMAGEFLEET_WEBHOOK_SECRETS": SECRET,
        "IMAGEFLEET_WEBHOOK_TENANT_SECRETS": f"gold={SECRET_OF_GOLD}",
    }


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver([SECRET]) as receiver:
        yield receiver


def _bodies(deliveries: Sequence[Delivery]) -> list[dict[str, Any]]:
    """Return the bodies in the order of the events, each once in effect: the receiver ignores an id
    that it has seen."""
    by_id = {each.headers["webhook-id"]: json.loads(each.body) for each in deliveries}
    return sorted(by_id.values(), key=lambda body: body["data"]["sequence"])


def _await_end(receiver: Receiver, ends: int = 1) -> list[dict[str, Any]]:
    """Wait for the end of a run, and for every event before it. Check what holds for any run."""

    def bodies() -> list[dict[str, Any]] | None:
        found = _bodies(receiver.deliveries)
        is_complete = [body["data"]["sequence"] for body in found] == [*range(1, len(found) + 1)]
        told = [body["type"] for body in found].count(ENDED) >= ends
        return found if is_complete and told else None

    found = until(bodies)
    assert all(each.verified for each in receiver.deliveries)
    assert [body["type"] for body in found].count(ENDED) == ends
    assert found[-1]["type"] == ENDED
    if ends == 1:
        assert [body["type"] for body in found].count("run.started") == 1
        percents = [body["data"]["progress"] for body in found]
        assert percents == sorted(percents)
        told = [body["data"]["progress"] for body in found if body["type"] == "run.progress"]
        assert len(told) == len(set(told))
        counted = [
            body["data"]["images"] + body["data"]["failed_images"]
            for body in found
            if body["type"] != "run.stalled"
        ]
        assert counted == sorted(counted)
    return found


def test_who_waits_is_told_from_the_start_to_the_end(
    start: StartWorker, producer: Client, receiver: Receiver, tmp_path: Path
) -> None:
    start()
    folder = tmp_path / "data"
    rows = [*PROMPTS[:-1], "a [fail] prompt", ""]
    run = producer.bulk(rows, folder, shard_size=10, callback_url=receiver.url)
    told = _await_end(receiver)
    for delivery in receiver.deliveries:
        standardwebhooks.Webhook(SECRET).verify(delivery.body, delivery.headers)
    assert (folder / "stats.json").exists()
    assert (folder / "README.md").exists()
    kinds = [body["type"] for body in told]
    assert kinds[0] == "run.started"
    assert kinds.count("run.started") == 1
    assert len(kinds) >= 4  # three shards end one after the other
    status = run.status()
    last = told[-1]["data"]
    assert last == {
        "id": run.id,
        "destination": folder.as_uri() + "/",
        "rows": 30,
        "rejected": 1,
        "duplicates": 0,
        "state": "succeeded",
        "sequence": len(told),
        "progress": 100,
        "samples": 30,
        "images": 29,
        "failed_images": 1,
        "shards": 3,
        "shards_by_state": {state.value: n for state, n in status.shards_by_state.items()},
    }
    assert last["shards_by_state"]["succeeded"] == 3


def test_the_same_command_again_tells_nothing_and_failed_rows_tell_another_end(
    start: StartWorker,
    producer: Client,
    receiver: Receiver,
    tmp_path: Path,
    client: redis.Redis,
    namespace: str,
) -> None:
    start()
    rows = [*PROMPTS[:-1], "a [fail] prompt"]
    options = {"shard_size": 10, "callback_url": receiver.url}
    run = producer.bulk(rows, tmp_path / "data", **options)
    run.wait(300)
    told = len(_await_end(receiver))
    for _ in range(2):
        producer.bulk(rows, tmp_path / "data", **options).wait(300)
    assert client.hlen(f"{namespace}:outbox:messages") == 0
    assert run.retry_failed() == 1
    assert run.wait(300).failed_images == 1
    again = _await_end(receiver, ends=2)[told:]
    assert [again[0]["type"], again[-1]["type"]] == ["run.started", ENDED]
    assert again[0]["data"]["progress"] == 60


class _StoreWithoutSummary:
    """An S3 server that does not take the summary of a run before `takes_it` is set."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.is_asked, self.takes_it = threading.Event(), threading.Event()

    def __call__(self, door: BaseHTTPRequestHandler, body: bytes, number: int) -> None:
        is_summary = door.command == "PUT" and door.path.endswith("/data/stats.json")
        if is_summary and not self.takes_it.is_set():
            self.is_asked.set()
            error(503, "SlowDown")(door, body, number)
        else:
            reply(door, *forward(self._upstream, door, body))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[_StoreWithoutSummary]:
    with signed_s3() as s3:
        for name, value in s3.credentials.environment().items():
            monkeypatch.setenv(name, value)
        yield _StoreWithoutSummary(s3.endpoint_url)


@pytest.fixture
def door(store: _StoreWithoutSummary) -> Iterator[FaultyS3]:
    with FaultyS3(store) as door:
        yield door


def _make(producer: Client, door: FaultyS3, receiver: Receiver) -> BulkRun:
    destination = f"s3://{BUCKET}/data?endpoint_url={door.endpoint_url}"
    return producer.bulk(PROMPTS, destination, shard_size=10, callback_url=receiver.url)


def test_a_worker_that_dies_between_its_last_record_and_the_event_loses_nothing(
    start: StartWorker,
    producer: Client,
    receiver: Receiver,
    client: redis.Redis,
    namespace: str,
    store: _StoreWithoutSummary,
    door: FaultyS3,
) -> None:
    allowed = {"IMAGEFLEET_BULK_ALLOW": door.endpoint_url}
    worker = start(**allowed)
    run = _make(producer, door, receiver)
    assert store.is_asked.wait(900)
    assert run.status().state is State.SUCCEEDED
    assert client.hget(run_key(namespace, run.id), "reported") == "running"
    # One that it is sending when it is killed would be sent again after a minute.
    until(lambda: not client.zcard(f"{namespace}:outbox"))
    worker.kill()
    assert ENDED not in [body["type"] for body in _bodies(receiver.deliveries)]
    store.takes_it.set()
    start(**allowed)
    assert _await_end(receiver)[-1]["data"]["images"] == 30
    assert run.store.exists("stats.json")


def test_the_end_waits_for_a_summary_that_takes_longer_than_searches_wait(
    start: StartWorker,
    producer: Client,
    receiver: Receiver,
    client: redis.Redis,
    namespace: str,
    store: _StoreWithoutSummary,
    door: FaultyS3,
) -> None:
    """The search of a run whose summary nobody writes reports its end after 10 seconds."""
    start(IMAGEFLEET_BULK_ALLOW=door.endpoint_url, IMAGEFLEET_BULK_STALLED_S="1")
    run = _make(producer, door, receiver)
    assert store.is_asked.wait(900)
    finished_at = run.status().finished_at or 0
    until(lambda: float(client.get(search_throttle_key(namespace)) or 0) > finished_at + 12)
    assert client.hget(run_key(namespace, run.id), "reported") == "running"
    store.takes_it.set()
    assert _await_end(receiver)[-1]["data"]["state"] == "succeeded"
    assert run.store.exists("stats.json")


def test_a_worker_that_dies_while_it_tells_is_followed_by_another_with_the_same_id(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    receiver: Receiver
    arrived, answer = threading.Event(), threading.Event()

    def starts() -> list[Delivery]:
        told = receiver.deliveries
        return [each for each in told if json.loads(each.body)["type"] == "run.started"]

    def respond(handler: BaseHTTPRequestHandler, number: int) -> None:
        is_start = receiver.deliveries[number - 1] in starts()
        if is_start and not arrived.is_set():
            arrived.set()
            answer.wait(900)
        respond_with(204)(handler, number)

    with Receiver([SECRET], respond) as receiver:
        worker = start()
        producer.bulk(PROMPTS[:8], tmp_path / "data", callback_url=receiver.url)
        assert arrived.wait(900)
        worker.kill()
        start()
        until(lambda: len(starts()) == 2)
        _await_end(receiver)
        answer.set()
        first, again = starts()
    assert first.headers["webhook-id"] == again.headers["webhook-id"]


def test_a_receiver_that_is_away_for_a_while_is_told_everything(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    with Receiver([SECRET], respond_with(503, 500, 204)) as receiver:
        start()
        producer.bulk(PROMPTS[:8], tmp_path / "data", callback_url=receiver.url)
        told = _await_end(receiver)
        deliveries = receiver.wait_for(len(told) + 2)
        assert all(each.verified for each in deliveries)


def test_a_redis_that_is_killed_and_started_again_loses_no_event(
    settings: dict[str, str], start: StartWorker, receiver: Receiver, tmp_path: Path
) -> None:
    with LocalRedisServer(tmp_path / "redis") as server:
        settings["IMAGEFLEET_REDIS_URL"] = server.url
        with Client(server.url, namespace=settings["IMAGEFLEET_NAMESPACE"]) as producer:
            start(IMAGEFLEET_REDIS_URL=server.url)
            run = producer.bulk(
                PROMPTS * 4, tmp_path / "data", shard_size=30, callback_url=receiver.url
            )
            for images in (10, 60):
                until(lambda images=images: run.status().images >= images)  # type: ignore[misc]
                server.kill()
                server.start()
            assert _await_end(receiver)[-1]["data"]["images"] == 120


def test_workers_that_are_killed_all_the_time_tell_each_event_once_in_effect(
    start: StartWorker, producer: Client, receiver: Receiver, tmp_path: Path
) -> None:
    workers = [start() for _ in range(2)]
    run = producer.bulk(PROMPTS * 8, tmp_path / "data", shard_size=40, callback_url=receiver.url)
    for images in (20, 70, 120, 170):
        until(lambda images=images: run.status().images >= images)  # type: ignore[misc]
        workers.append(start())
        workers.pop(0).kill()
    assert _await_end(receiver)[-1]["data"]["images"] == 240
    assert run.verify().clean


def test_a_run_that_stalls_and_goes_on_is_told_as_stalled_and_ended(
    start: StartWorker, producer: Client, receiver: Receiver, tmp_path: Path
) -> None:
    """The first worker has another model, so it can tell and not make."""
    run = producer.bulk(PROMPTS, tmp_path / "data", callback_url=receiver.url, model="fake")
    start(IMAGEFLEET_MODEL="fake:name=other,capacity=8", IMAGEFLEET_BULK_STALLED_S="1")
    [stalled] = _bodies(receiver.wait_for(1))
    assert stalled["type"] == "run.stalled"
    assert stalled["data"]["idle_s"] >= 10
    assert (stalled["data"]["images"], stalled["data"]["shards_by_state"]["queued"]) == (0, 1)
    start(IMAGEFLEET_MAY_DIFFER="model")
    told = _await_end(receiver)
    assert [body["type"] for body in told[:2]] == ["run.stalled", "run.started"]
    assert run.status().state is State.SUCCEEDED


def test_a_cancelled_run_is_told_and_told_again_when_it_is_resumed(
    start: StartWorker, producer: Client, receiver: Receiver, tmp_path: Path
) -> None:
    start()
    run = producer.bulk(PROMPTS * 4, tmp_path / "data", shard_size=30, callback_url=receiver.url)
    until(lambda: run.status().images > 0)
    run.cancel()
    assert _await_end(receiver)[-1]["data"]["state"] == "cancelled"
    producer.bulk(PROMPTS * 4, tmp_path / "data", shard_size=30)  # it keeps its receiver
    assert _await_end(receiver, ends=2)[-1]["data"]["state"] == "succeeded"


def test_the_run_of_appended_rows_has_a_receiver_of_its_own(
    start: StartWorker, producer: Client, receiver: Receiver, tmp_path: Path
) -> None:
    start()
    folder = tmp_path / "data"
    with Receiver([SECRET]) as second:
        first = producer.bulk(PROMPTS * 4, folder, shard_size=30, callback_url=receiver.url)
        until(lambda: first.status().images > 0)
        run = producer.bulk(
            [*PROMPTS * 4, "new"], folder, shard_size=30, append=True, callback_url=second.url
        )
        assert _await_end(receiver)[-1]["data"]["state"] == "cancelled"
        last = _await_end(second)[-1]["data"]
    assert (last["id"], last["state"], last["rows"]) == (run.id, "succeeded", 121)
    assert last["id"] != first.id


def test_secrets_of_the_tenant_sign(
    start: StartWorker, redis_server: LocalRedisServer, namespace: str, tmp_path: Path
) -> None:
    start()

    async def make(url: str) -> None:
        async with AsyncClient(redis_server.url, namespace=namespace, tenant="gold") as gold:
            run = await gold.bulk(PROMPTS[:3], tmp_path / "data", callback_url=url)
            await run.wait(300)

    with Receiver([SECRET_OF_GOLD]) as receiver:
        asyncio.run(make(receiver.url))
        _await_end(receiver)


def test_an_address_that_the_operator_does_not_allow_is_given_up_and_listed(
    start: StartWorker, producer: Client, receiver: Receiver, tmp_path: Path
) -> None:
    start(IMAGEFLEET_CALLBACK_ALLOW="")
    run = producer.bulk(PROMPTS[:3], tmp_path / "data", callback_url=receiver.url)
    assert run.wait(300).state is State.SUCCEEDED
    ids = {f"{run.id}.started", f"{run.id}.ended"}
    until(lambda: {each.id for each in producer.outbox.entries(failed=True)} >= ids)
    assert receiver.deliveries == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"callback_url": "ftp://x.example"}, "callback_url='ftp://x.example': must be an http://"),
        ({"callback_url": "https://a:b@x.example"}, "must not carry a user or a password"),
        ({"callback_url": 7}, "callback_url=7: "),
        ({"callback_url": ""}, "callback_url='': must be an http://"),
        ({"callback_tenant": "gold"}, "callback_tenant='gold': needs callback_url"),
        ({"callback_url": "https://x.example", "callback_tenant": "a b"}, "'a b': must be 1 to"),
        ({"callback_url": "https://x.example", "callback_tenant": 7}, "=7: must be text"),
    ],
)
def test_a_wrong_address_is_refused_before_anything_is_written(
    producer: Client, tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        producer.bulk(PROMPTS, tmp_path / "data", **options)
    assert sentence in str(refused.value)
    assert not (tmp_path / "data").exists()


def test_the_command_takes_an_address_and_refuses_a_wrong_one(
    start: StartWorker,
    receiver: Receiver,
    tmp_path: Path,
    redis_server: LocalRedisServer,
    namespace: str,
) -> None:
    start()
    table, folder = tmp_path / "prompts.txt", tmp_path / "data"
    table.write_text("\n".join(PROMPTS[:3]))
    command = ["bulk", "run", str(table), str(folder)]
    command += ["--redis-url", redis_server.url, "--namespace", namespace]
    for more in ([], ["--dry-run"]):
        wrong = CliRunner().invoke(main, [*command, "--callback-url", "localhost:80", *more])
        assert wrong.exit_code == 1
        assert "callback_url='localhost:80': must be an http:// or https://" in wrong.output
    made = CliRunner().invoke(main, [*command, "--callback-url", receiver.url])
    assert made.exit_code == 0, made.output
    assert _await_end(receiver)[-1]["data"]["images"] == 3
