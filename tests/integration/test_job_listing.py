"""All jobs of a namespace can be listed, by state, tenant and time, also by a command."""

import asyncio
import json
import logging
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from imagefleet import AsyncClient, Client, InvalidRequest, State
from imagefleet.shared.jobs.redis_keys import job_key
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support import forked


def _ids(producer: Client, **wanted: Any) -> set[str]:
    return {status.id for status in producer.jobs(**wanted)}


@pytest.fixture
def fleet(producer: Client, client: redis.Redis, namespace: str) -> Client:
    """A client of a namespace with four jobs of different states, tenants and times."""
    for number, (job_id, tenant) in enumerate(
        {"a": None, "b": "gold", "c": "gold", "d": None}.items()
    ):
        producer.submit(f"prompt {job_id}", id=job_id, tenant=tenant)
        client.hset(job_key(namespace, job_id), "submitted_at", 1_000 + number)
    producer.cancel("b")
    producer.cancel("d")
    return producer


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({}, "abcd"),
        ({"state": State.CANCELLED}, "bd"),
        ({"state": "queued"}, "ac"),
        ({"state": "running"}, ""),
        ({"tenant": "gold"}, "bc"),
        ({"tenant": ""}, "ad"),
        ({"since": 1_002}, "cd"),
        ({"since": datetime.fromtimestamp(1_003, UTC)}, "d"),
        ({"state": "cancelled", "tenant": "gold", "since": 1_001}, "b"),
        ({"state": "cancelled", "tenant": "gold", "since": 1_002}, ""),
    ],
)
def test_a_listing_yields_the_jobs_that_fit(
    fleet: Client, wanted: dict[str, Any], ids: str
) -> None:
    assert _ids(fleet, **wanted) == {*ids}


def test_every_job_of_many_pages_is_yielded_once(
    producer: Client, redis_server: LocalRedisServer, namespace: str
) -> None:
    jobs = producer.submit_many([f"prompt {n}" for n in range(3_000)])
    other = Client(redis_server.url, namespace=f"{namespace}x").submit("of another fleet")
    found = [status.id for status in producer.jobs()]
    assert sorted(found) == sorted(job.id for job in jobs)
    assert other.id not in found


def test_a_record_that_cannot_be_read_is_left_out_with_a_warning(
    fleet: Client, client: redis.Redis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.hset(job_key(namespace, "a"), "request", "{")
    client.hdel(job_key(namespace, "c"), "state", "submitted_at")
    client.set(job_key(namespace, "odd"), "no hash")
    for wanted in ({}, {"state": "cancelled", "since": 0}):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert _ids(fleet, **wanted) == {*"bd"}
        unreadable = {"c", "odd"} | ({"a"} if not wanted else set())
        warned = sorted(record.getMessage().split("'")[1] for record in caplog.records)
        assert warned == sorted(unreadable)


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"state": "done"}, "state='done': must be one of queued, running, succeeded"),
        ({"since": "yesterday"}, "since='yesterday': must be a datetime, or Unix seconds"),
        ({"since": float("nan")}, "since=nan: must be a datetime, or Unix seconds"),
        ({"since": datetime(2026, 1, 31)}, "since=.*: must have a time zone"),
        ({"tenant": 3}, "tenant=3: must be a text"),
    ],
)
def test_a_wrong_filter_is_refused_at_once(
    producer: Client, wanted: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        producer.jobs(**wanted)


def test_the_client_for_asyncio_lists_too(
    fleet: Client, redis_server: LocalRedisServer, namespace: str
) -> None:
    async def run() -> set[str]:
        async with AsyncClient(redis_server.url, namespace=namespace) as client:
            return {status.id async for status in client.jobs(tenant="gold")}

    assert asyncio.run(run()) == {"b", "c"}


class Command:
    """`imagefleet jobs` for one namespace."""

    def __init__(self, url: str, namespace: str) -> None:
        self._command = ("-m", "imagefleet.producer", "jobs")
        self._connection = ("--redis-url", url, "--namespace", namespace)

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return forked.run(*self._command, *self._connection, *arguments)


@pytest.fixture
def run(redis_server: LocalRedisServer, namespace: str) -> Command:
    return Command(redis_server.url, namespace)


def test_the_command_prints_the_latest_first(fleet: Client, run: Command) -> None:
    done = run("--limit", "2")
    assert (done.returncode, done.stdout) == (
        0,
        "d  cancelled  1970-01-01T00:16:43+00:00  -  -  prompt d\n"
        "c  queued  1970-01-01T00:16:42+00:00  gold  -  prompt c\n",
    )
    assert done.stderr == "2 older jobs not listed; raise --limit\n"


def test_the_command_filters(fleet: Client, run: Command) -> None:
    arguments = ("--state", "cancelled", "--since", "1970-01-01T00:16:42", "--json")
    [line] = run(*arguments).stdout.splitlines()
    assert (json.loads(line)["id"], json.loads(line)["state"]) == ("d", "cancelled")
    assert run("--tenant", "gold", "--json").stdout.count("\n") == 2
    done = run("--since", "2h")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no jobs\n")
    fleet.submit("new", id="new")
    assert run("--since", "2h").stdout.startswith("new  queued  ")


def test_a_failed_job_shows_code_reason_and_worker(
    fleet: Client, run: Command, client: redis.Redis, namespace: str
) -> None:
    failed: dict[Any, Any] = {
        "state": "failed",
        "worker": "imagefleet-7@host-3",
        "error": json.dumps(
            {"code": "out_of_memory", "message": "the\ndevice is full" + "." * 300}
        ),
    }
    client.hset(job_key(namespace, "c"), mapping=failed)
    [line] = run("--state", "failed").stdout.splitlines()
    start = "c  failed  1970-01-01T00:16:42+00:00  gold  imagefleet-7@host-3  out_of_memory: the"
    assert line.startswith(start)
    assert r"the\ndevice is full..." in line
    assert line.endswith("…")


def test_the_command_cuts_long_prompts_into_one_line(fleet: Client, run: Command) -> None:
    fleet.submit("a\nvery " + "long " * 100, id="e")
    line = run("--limit", "1").stdout
    assert len(line) == 81  # the width of no terminal, and the line break
    assert r"a\nvery long" in line
    assert line.endswith("…\n")


def test_a_wrong_time_is_a_usage_error(run: Command) -> None:
    done = run("--since", "yesterday")
    assert done.returncode == 2
    assert "'yesterday' is neither an age, as in 30m, 2h or 7d, nor a time" in done.stderr
