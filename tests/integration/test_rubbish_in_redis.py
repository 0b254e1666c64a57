"""Rubbish that anybody may have written to Redis costs its own entry, and no command the others."""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final, cast

import pytest
import redis
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest

from imagefleet import Client
from imagefleet.producer.commands.cli import main
from imagefleet.producer.fleet.metrics import FleetCollector
from imagefleet.producer.fleet.snapshot import read_snapshot
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import JobError, State
from imagefleet.shared.jobs.offers import OfferRegistry
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import (
    DeliveryOutcome,
    DeliveryVerdict,
    OutboxMessage,
)
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import offer_of
from tests.support.datasets import RUN, SHARDS
from tests.support.records import result_of_one_image, start_attempt

LISTINGS: Final = {
    ("jobs", "--limit", "100000"): "job-b",
    ("jobs", "--json", "--state", "failed", "--since", "1h"): "job-b",
    ("fleet",): "worker-b",
    ("fleet", "--json"): "worker-b",
    ("workers", "list"): "worker-b",
    ("dead-letters", "list"): "dead-b",
    ("dead-letters", "list", "--json"): "dead-b",
    ("tenants",): "tenant-b",
    ("tenants", "--json"): "tenant-b",
    ("webhooks", "list"): "hook-b",
    ("webhooks", "list", "--job", "hook-b", "--json"): "hook-b",
    ("bulk", "status"): "run-b",
    ("bulk", "status", "--json"): "run-b",
}
"""Each of these listings shows this beside a damaged entry."""
DRAWS: Final = 20
"""More were drawn by hand: 4 values for every place found nothing else."""
ABOUT_ONE: Final = (
    ("status", "job-a"),
    ("cancel", "job-a"),
    ("resend", "job-a"),
    ("submit", "again", "--id", "job-a"),
    ("webhooks", "list", "--job", "hook-a"),
    ("bulk", "status", "run-a"),
    ("bulk", "cancel", "run-a"),
)
"""These commands are about an entry that may be damaged. They say so in one sentence."""
ONLY_LISTS: Final = {
    "leases": "worker",
    "outbox": "hook",
    "outbox:messages": "hook",
    "dead": "dead",
    "dead:letters": "dead",
    "bulk": "run",
}
"""Without these keys a kind of entry cannot be listed."""
RUBBISH: Final = (
    *("nan", "inf", "-inf", "-1", "1e999", "1e18", "9" * 5_000, "-0", "0x10", " 5 ", "1_0", "٣"),
    *("", "abc", "\0", b"\xff", "é" * 300, "null", "true", "[]", "{}", '""', "[" * 5_000, "1|2"),
    *("NaN", '{"at": NaN}', "queued|||x|0|0", "none|||0|0|0", "1" + "0" * 400),
)
"""Every field may get these values."""


@pytest.fixture
def fleet(
    producer: Client, client: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Client:
    """A fleet with two of everything that commands list. The second is never damaged."""
    monkeypatch.setenv("IMAGEFLEET_REDIS_URL", producer.settings.redis_url.get_secret_value())
    monkeypatch.setenv("IMAGEFLEET_NAMESPACE", namespace)
    monkeypatch.setenv("COLUMNS", "200")
    offers = OfferRegistry(client, namespace)
    offers.renew(["fake"], 600)
    offers.announce(offer_of(FakeEngine().info))
    for each in "ab":
        _add_jobs(producer, client, each)
        _add_others(producer, client, each)
    records, done = JobRecords(client, namespace, 600), "job-done"
    producer.submit("prompt", id=done)
    start_attempt(records, done, "attempt")
    records.succeed(done, "attempt", result_of_one_image(), None)
    return producer


def _add_jobs(producer: Client, client: redis.Redis, each: str) -> None:
    """Add a job that failed and one that waits, with their tenant and a dead letter."""
    namespace, job, tenant = producer.settings.namespace, f"job-{each}", f"tenant-{each}"
    records = JobRecords(client, namespace, 600)
    producer.submit(f"prompt of {job}", id=job, tenant=tenant, model="fake")
    producer.submit("prompt", id=f"waiting-{each}", tenant=tenant)
    start_attempt(records, job, "attempt")
    records.fail(job, "attempt", JobError(code="worker_error", message="why"), None)
    producer.tenants.set_weight(tenant, 2)
    producer.tenants.set_limit(tenant, 100)
    message = json.dumps({"headers": {"id": f"dead-{each}"}})
    letters = DeadLetters(producer.connection.redis, producer.connection.namespace)
    letters.add("q", message, code="c", reason="why", deliveries=1)


def _add_others(producer: Client, client: redis.Redis, each: str) -> None:
    """Add a worker, a dataset and a callback that was tried once."""
    namespace = producer.settings.namespace
    worker = WorkerStatus(worker=f"worker-{each}", state=WorkerState.READY, model="fake")
    client.hset(f"{namespace}:workers", worker.worker, worker.dump())
    client.zadd(f"{namespace}:leases", {worker.worker: time.time() + 600})
    runs = RunRecords(client, namespace, 600)
    run = replace(RUN, id=f"run-{each}", destination=f"file:///nowhere/{each}/")
    runs.start(run)
    runs.enqueue(run, SHARDS)
    name, url = f"hook-{each}", "http://a.example"
    callback = OutboxMessage(id=f"{name}.failed", job_id=name, url=url, body="{}")
    outbox = Outbox(client, namespace)
    outbox.add(callback)
    outcome = DeliveryOutcome(verdict=DeliveryVerdict.RETRY, status=500)
    outbox.retry(replace(callback, attempts=1), 60, outcome)


def _invoke(*command: str) -> str:
    """Run a command that must not end in a traceback. Return what it prints."""
    result = CliRunner().invoke(main, command)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"{command}: {result.exception!r}") from result.exception
    assert result.exit_code in (0, 1), (command, result.output)
    assert result.output
    return result.output


def _check(fleet: Client, damaged_kind: str = "") -> None:
    """Run every command. Skip the kind of entry whose only list is lost."""
    for command, witness in LISTINGS.items():
        output = _invoke(*command)
        if not witness.startswith(damaged_kind or " "):
            assert "imagefleet: " not in output, (command, output)
            assert witness in output, (command, output)
    for command in ABOUT_ONE:
        _invoke(*command)
    registry = CollectorRegistry()
    registry.register(FleetCollector(partial(read_snapshot, fleet.connection)))
    assert b"imagefleet_redis_up 1.0" in generate_latest(registry)
    with Client(settings=fleet.settings) as fresh:
        jobs = fresh.submit_many(["of another program"] * 2)
        assert {job.status().state for job in jobs} == {"queued"}


def test_a_sound_fleet_is_listed(fleet: Client) -> None:
    _check(fleet)


def _keys(client: redis.Redis, namespace: str) -> list[str]:
    """Return the keys that may be damaged."""
    found = sorted(client.scan_iter(f"{namespace}[:.]*", count=10_000))
    return [key for key in found if "-b" not in key]


def test_a_key_of_another_type_costs_that_key(
    fleet: Client, client: redis.Redis, namespace: str
) -> None:
    keys = _keys(client, namespace)
    assert len(keys) > 20
    for key in keys:
        kind = client.type(key)
        client.rename(key, f"kept:{namespace}")
        (client.rpush if kind == "string" else client.set)(key, "another type")
        _check(fleet, ONLY_LISTS.get(key.partition(":")[2], ""))
        client.rename(f"kept:{namespace}", key)


def test_a_damaged_value_costs_its_entry(
    fleet: Client, client: redis.Redis, namespace: str
) -> None:
    draw, kept = random.Random(7), f"kept:{namespace}"
    places = list(_places(client, namespace))
    assert len(places) > 80
    for _ in range(DRAWS):
        (key, member), rubbish = draw.choice(places), draw.choice(RUBBISH)
        print(key, member, rubbish[:40])
        client.copy(key, kept, replace=True)
        _damage(client, key, member, rubbish)
        _check(fleet)
        client.rename(kept, key)


def _places(client: redis.Redis, namespace: str) -> Iterator[tuple[str, str]]:
    """Yield each key with each field or member that may be damaged."""
    for key in _keys(client, namespace):
        kind = client.type(key)
        yield key, "new"
        if kind == "hash":
            texts = cast(dict[str, str], client.hgetall(key))
            yield from ((key, name) for name, text in texts.items() if "-b" not in text)
        elif kind == "zset":
            members = cast(list[str], client.zrange(key, 0, -1))
            yield from ((key, each) for each in members if "-b" not in each)


def _damage(client: redis.Redis, key: str, member: str, rubbish: str | bytes) -> None:
    kind = client.type(key)
    if kind == "hash":
        client.hset(key, member, rubbish)
    elif kind == "zset":
        client.execute_command("ZADD", key, 1, rubbish, "inf", member)
    elif kind == "list":
        client.rpush(key, rubbish)
    elif kind == "set":
        client.sadd(key, rubbish)
    else:
        client.set(key, rubbish)


def test_a_time_that_is_none_is_named_in_one_line(fleet: Client, client: redis.Redis) -> None:
    record = f"{fleet.settings.namespace}:job:job-a"
    for rubbish in ("nan", "inf", "-1", "soon", "1e300"):
        client.hset(record, "submitted_at", rubbish)
        assert "'job-a'" in _invoke("status", "job-a")
        assert "prompt of job-a" not in _invoke("jobs", "--since", "1h")


@pytest.mark.parametrize(
    "damage",
    [
        {"shapes": []},
        {"shapes": [[0, 64]]},
        {"guidance_scale": "NaN"},
        {"num_inference_steps": 0},
        {"max_num_inference_steps": -1},
    ],
)
def test_an_offer_without_sense_is_ignored(
    fleet: Client, client: redis.Redis, damage: dict[str, object]
) -> None:
    offers = f"{fleet.settings.namespace}:catalogue"
    offer = json.loads(client.hget(offers, "fake") or "")
    client.hset(offers, "default", json.dumps({**offer, **damage}))
    with Client(settings=fleet.settings) as fresh:
        assert fresh.offers()["default"] == fresh.offers()["fake"]
        fresh.submit("a cat")


@pytest.mark.parametrize("limit", ["-5", "nan", "inf", "1e3", "abc", "9" * 400])
def test_a_damaged_limit_limits_nobody(fleet: Client, client: redis.Redis, limit: str) -> None:
    client.hset(f"{fleet.settings.namespace}:limits", mapping={"*": limit, "tenant-a": limit})
    fleet.submit("a cat", tenant="tenant-a")
    assert all(each.limit in (None, 100) for each in fleet.tenants.statuses())


def test_the_shard_of_a_damaged_record_is_made_again(
    fleet: Client, client: redis.Redis, namespace: str
) -> None:
    runs, run = RunRecords(client, namespace, 600), replace(RUN, id="run-a")
    key = runs.shards_key("run-a")
    lists = client.keys(f"{namespace}.bulk.*")
    client.delete(*lists)
    client.hset(key, mapping={"0": "queued||w|1|0", "1": "rubbish", "2": "done||w|4|0|1"})
    assert [each.shard for each in runs.shards("run-a")] == []
    assert runs.resend_lost(run, SHARDS) == len(SHARDS)
    assert runs.get("run-a").shards_by_state[State.QUEUED] == len(SHARDS)
    for shard in SHARDS:
        assert runs.begin("run-a", shard.number, "attempt", "w").happened
        ended = runs.succeed("run-a", shard.number, "attempt", "w", 4, {})
    assert ended.run_state is State.SUCCEEDED
    assert runs.get("run-a").images == RUN.samples
