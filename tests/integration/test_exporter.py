"""`imagefleet exporter` against a real Redis, as Prometheus reads it."""

import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from imagefleet import Client
from imagefleet.shared.bulk.redis_keys import index_key, run_key
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.redis_client.memory import read_memory
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import offer_of
from tests.support.datasets import RUN, SHARDS
from tests.support.hanging import HangingServer
from tests.support.http_client import http_get
from tests.support.processes import StartWorker, until
from tests.support.redis import TcpServer
from tests.support.slow_clients import SlowClients

SCRAPE_TIMEOUT_S = 10.0
"""How long Prometheus waits for a page, if nothing else is configured."""
_HANGING_LOOKUP = """
import socket, sys, threading
lookup = socket.getaddrinfo
def hang(host, *arguments, **options):
    if host == "redis.test":
        threading.Event().wait()
    return lookup(host, *arguments, **options)
socket.getaddrinfo = hang
from imagefleet.producer.commands.cli import main
main()
"""
"""An `imagefleet` whose lookup of one name never ends."""


@dataclass(frozen=True)
class Scrape:
    """Reads the page of an exporter: `scrape()`."""

    port: int
    fleet: str

    def __call__(self) -> dict[tuple[str, str], float]:
        """Return the values by metric and label values, without that of the fleet."""
        families = text_string_to_metric_families(http_get(self.port, "/metrics")[1])
        samples = [sample for family in families for sample in family.samples]
        assert {sample.labels.pop("fleet") for sample in samples} == {self.fleet}
        return {
            (sample.name, " ".join(filter(None, sample.labels.values()))): sample.value
            for sample in samples
        }


@pytest.fixture
def export(start: StartWorker, namespace: str) -> Callable[..., Scrape]:
    def start_exporter(
        *options: str, program: Sequence[str] = ("-m", "imagefleet.producer"), **settings: str
    ) -> Scrape:
        command = [*program, "exporter", "--host", "127.0.0.1", "--port", "0"]
        exporter = start(*command, *options, **settings)
        line = until(lambda: re.search(r"metrics on 127\.0\.0\.1 port (\d+)", exporter.output()))
        assert line is not None
        return Scrape(int(line[1]), namespace)

    return start_exporter


def test_the_exporter_reads_the_memory_of_redis(
    export: Callable[..., Scrape], tmp_path: Path
) -> None:
    with TcpServer(tmp_path / "bounded", "--maxmemory", "64mb") as server:
        scraped = export(IMAGEFLEET_REDIS_URL=f"redis://127.0.0.1:{server.port}/0")()
    assert scraped["imagefleet_redis_memory_bytes", "limit"] == 64 * 2**20
    assert 0 < scraped["imagefleet_redis_memory_bytes", "used"] < 64 * 2**20


def test_a_user_who_may_not_ask_for_the_memory_gets_the_other_metrics(
    export: Callable[..., Scrape], tmp_path: Path
) -> None:
    with TcpServer(tmp_path / "plain") as server:
        server.client().execute_command(
            "ACL", "SETUSER", "silent", "on", ">pw", "~*", "&*", "+@all", "-info"
        )
        url = f"redis://silent:pw@127.0.0.1:{server.port}/0"
        scraped = export(IMAGEFLEET_REDIS_URL=url)()
    assert scraped["imagefleet_redis_up", ""] == 1
    assert ("imagefleet_redis_memory_bytes", "used") not in scraped


def test_without_maxmemory_the_limit_is_the_memory_of_the_machine(client: redis.Redis) -> None:
    memory = read_memory(client)
    assert memory is not None
    assert not memory.is_bounded
    assert memory.limit is not None
    assert memory.limit > memory.used > 0
    assert "without maxmemory" in str(memory)


def test_models_have_labels_by_their_offers_and_by_the_command(
    export: Callable[..., Scrape], producer: Client, client: redis.Redis, namespace: str
) -> None:
    for model in ("org/declared", "org/unknown"):
        producer.submit("a", model=model)
    scrape = export("--model", "org/declared@main", "--model", "")
    scraped = scrape()
    assert scraped["imagefleet_queue_messages", "org/declared native jobs"] == 1
    assert scraped["imagefleet_queue_messages", "other other jobs"] == 1
    assert scraped["imagefleet_ready_workers", "org/declared"] == 0

    offer = offer_of(FakeEngine().info).model_copy(update={"model": "org/unknown"})
    client.hset(f"{namespace}:catalogue", "org/unknown", offer.model_dump_json())
    assert scrape()["imagefleet_queue_messages", "org/unknown native jobs"] == 1


def test_a_worker_that_takes_work_counts_for_its_model(
    export: Callable[..., Scrape], start: StartWorker, producer: Client
) -> None:
    start().await_log("ready after")
    until(lambda: producer.fleet.read().workers)
    scraped = export()()
    assert scraped["imagefleet_ready_workers", "fake"] == 1
    assert scraped["imagefleet_ready_workers", "default"] == 1


def test_a_dataset_in_which_nothing_changes_has_an_age(
    export: Callable[..., Scrape], client: redis.Redis, namespace: str
) -> None:
    scrape = export()
    assert scrape()["imagefleet_dataset_idle_seconds", ""] == 0
    runs = RunRecords(client, namespace, 3600)
    runs.start(RUN)
    runs.enqueue(RUN, SHARDS)
    record = run_key(namespace, RUN.id)
    client.hincrby(record, "moved_at", -100)
    assert 100 <= scrape()["imagefleet_dataset_idle_seconds", ""] < 1_000
    client.zadd(index_key(namespace), {"foreign": 1, "damaged": 2})
    client.set(run_key(namespace, "foreign"), "another type")
    client.hset(run_key(namespace, "damaged"), mapping={"state": "running", "moved_at": "x"})
    assert 100 <= scrape()["imagefleet_dataset_idle_seconds", ""] < 1_000
    runs.cancel(RUN.id)
    assert scrape()["imagefleet_dataset_idle_seconds", ""] == 0


@pytest.mark.parametrize("key", ["catalogue", "bulk"])
def test_a_key_of_another_type_costs_what_it_holds(
    export: Callable[..., Scrape], producer: Client, client: redis.Redis, namespace: str, key: str
) -> None:
    producer.submit("a")
    client.delete(f"{namespace}:{key}")
    client.set(f"{namespace}:{key}", "another type")
    scraped = export()()
    assert scraped["imagefleet_redis_up", ""] == 1
    assert scraped["imagefleet_queue_messages", "default native jobs"] == 1


def test_without_redis_the_exporter_says_so(
    export: Callable[..., Scrape], redis_server: LocalRedisServer
) -> None:
    scraped = export(IMAGEFLEET_REDIS_URL="redis://127.0.0.1:1/0")()
    assert scraped == {("imagefleet_redis_up", ""): 0}


def _scrape_in_time(scrape: Scrape) -> dict[tuple[str, str], float]:
    started = time.monotonic()
    scraped = scrape()
    assert time.monotonic() - started < SCRAPE_TIMEOUT_S
    return scraped


def test_prometheus_learns_that_redis_hangs_before_it_gives_up(
    export: Callable[..., Scrape], redis_server: LocalRedisServer
) -> None:
    with HangingServer("127.0.0.1") as server:
        scrape = export(IMAGEFLEET_REDIS_URL=f"redis://127.0.0.1:{server.port}/0")
        assert _scrape_in_time(scrape) == {("imagefleet_redis_up", ""): 0}


def test_prometheus_learns_that_the_name_of_redis_is_not_resolved_before_it_gives_up(
    export: Callable[..., Scrape], redis_server: LocalRedisServer
) -> None:
    scrape = export(
        program=("-c", _HANGING_LOOKUP), IMAGEFLEET_REDIS_URL="redis://redis.test:6379/0"
    )
    for _ in range(2):
        assert _scrape_in_time(scrape) == {("imagefleet_redis_up", ""): 0}


def test_the_exporter_reads_a_redis_that_was_frozen_and_is_back(
    export: Callable[..., Scrape], tmp_path: Path
) -> None:
    with TcpServer(tmp_path / "frozen") as server:
        scrape = export(IMAGEFLEET_REDIS_URL=f"redis://127.0.0.1:{server.port}/0")
        assert _scrape_in_time(scrape)["imagefleet_redis_up", ""] == 1
        server.process.send_signal(signal.SIGSTOP)
        assert _scrape_in_time(scrape) == {("imagefleet_redis_up", ""): 0}
        server.process.send_signal(signal.SIGCONT)
        until(lambda: _scrape_in_time(scrape)["imagefleet_redis_up", ""] == 1)


def test_500_slow_clients_keep_no_scrape_from_the_exporter(
    export: Callable[..., Scrape], redis_server: LocalRedisServer
) -> None:
    scrape = export()
    with SlowClients(scrape.port, 500):
        scraped = [scrape()["imagefleet_redis_up", ""] for _ in range(100)]
    assert scraped == [1] * 100
