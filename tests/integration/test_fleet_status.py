"""What an operator sees of workers and queues, from real workers."""

import json
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from imagefleet import Client
from imagefleet.producer.commands import workers
from imagefleet.producer.commands.cli import main
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.redis_keys import (
    claims_key,
    dead_letter_totals_key,
    drain_requests_key,
    job_ends_key,
    job_key,
    leases_key,
    workers_key,
)
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from tests.integration.conftest import MakeClaims
from tests.support.datasets import planned_dataset
from tests.support.http_client import http_get
from tests.support.processes import StartWorker, Worker, until
from tests.support.s3 import BUCKET, FaultyS3, error, pass_on, signed_s3
from tests.support.slow_clients import SlowClients


def _port(worker: Worker) -> int:
    worker.await_log("ready after")
    [port] = re.findall(r"metrics and health on \S+ port (\d+)", worker.output())
    return int(port)


def _sample(page: str, name: str, labels: str = "") -> float:
    """Return the value of the sample of `name` whose labels after that of the fleet are these."""
    pattern = rf'^{name}\{{fleet="[^"]+"{re.escape(labels)}\}} (\S+)$'
    [value] = re.findall(pattern, page, re.MULTILINE)
    return float(value)


def test_a_worker_reports_what_it_did(start: StartWorker, producer: Client) -> None:
    worker = start(IMAGEFLEET_METRICS_PORT="0", IMAGEFLEET_METRICS_HOST="127.0.0.1")
    port = _port(worker)
    for job in producer.submit_many([f"prompt {i}" for i in range(20)]):
        job.result(timeout=900)
    uploads = "imagefleet_job_stage_seconds_count", ',stage="upload"'
    until(lambda: _sample(http_get(port, "/metrics")[1], *uploads) >= 20)  # counted after the end
    page = http_get(port, "/metrics")[1]
    assert _sample(page, "imagefleet_images_total") == 20
    assert _sample(page, "imagefleet_batch_slots_total", ',use="job"') == 20
    assert _sample(page, *uploads) == 20
    assert _sample(page, "imagefleet_device_busy_seconds_total") > 0
    until(lambda: producer.fleet.read().workers[0].images == 20)
    [status] = producer.fleet.read().workers
    assert (status.model, status.capacity) == ("fake", 8)
    assert status.batch_fill is not None
    assert 0 < status.batch_fill <= 1
    assert status.step_s is not None
    assert status.step_s >= 0.02


def test_the_claims_of_a_worker_are_those_in_flight_and_not_those_of_its_heartbeat(
    producer: Client,
    client: redis.Redis,
    namespace: str,
    settings: dict[str, str],
    make_claims: MakeClaims,
) -> None:
    claims = make_claims("busy")
    status = WorkerStatus(worker=claims.worker, state=WorkerState.READY, claims=2)
    client.hset(workers_key(namespace), claims.worker, status.dump())
    client.hset(claims_key(namespace, claims.worker), "tag", "message")
    read = producer.fleet.read()
    assert ([each.claims for each in read.workers], read.in_flight) == ([1], 1)
    shown = CliRunner(env=settings).invoke(main, ["fleet"]).output
    assert re.search(r"^busy +ready +1 ", shown, re.MULTILINE), shown
    assert "1 in flight" in shown


def test_names_that_drain_takes_are_shown_whole_in_80_columns(
    client: redis.Redis, namespace: str, settings: dict[str, str], make_claims: MakeClaims
) -> None:
    name = "gke-tpu-v5e-pool-7f3a9c2b-x4kd.europe-west4.internal:123456:abc123"
    claims = make_claims(name)
    status = WorkerStatus(worker=name, state=WorkerState.READY, images=12_345)
    client.hset(workers_key(namespace), claims.worker, status.dump())
    shown = CliRunner(env={**settings, "COLUMNS": "80"}).invoke(main, ["fleet"]).output
    assert re.search(rf"^{re.escape(name)} +ready +0 +12,345 ", shown, re.MULTILINE), shown


def test_a_drained_worker_ends_with_success_and_is_not_listed(
    start: StartWorker, producer: Client, settings: dict[str, str]
) -> None:
    workers = [start(IMAGEFLEET_METRICS_PORT="0"), start()]
    for worker in workers:
        worker.await_log("ready after")
    until(lambda: len(producer.fleet.read().workers) == 2)
    [name] = re.findall(r'worker="([^"]*)"', http_get(_port(workers[0]), "/metrics")[1])
    command = ["workers", "drain", name, "--wait"]
    done = CliRunner(env=settings).invoke(main, command)
    assert (done.exit_code, done.output) == (0, f"{name}  ended\n")
    assert workers[0].wait() == 0
    [other] = producer.fleet.read().workers
    assert other.worker != name
    done = CliRunner(env=settings).invoke(main, command)
    assert done.exit_code == 1
    assert "is no living worker" in done.output


def test_a_worker_that_fails_says_so(
    start: StartWorker, producer: Client, tmp_path: object
) -> None:
    failing = f"{tmp_path}/failing"
    worker = start(
        IMAGEFLEET_METRICS_PORT="0", IMAGEFLEET_MODEL=f"fake:seconds=0.02,failing={failing}"
    )
    port = _port(worker)
    until(lambda: http_get(port, "/readyz")[0] == 200)
    with open(failing, "w"):
        producer.submit("it fails")
    until(lambda: http_get(port, "/readyz")[0] == 503)
    assert "quarantined" in http_get(port, "/readyz")[1]
    until(lambda: producer.fleet.read().workers[0].state is WorkerState.QUARANTINED)
    until(lambda: "told to fail" in producer.fleet.read().workers[0].last_error)


def test_a_killed_worker_is_lost_until_another_reclaims_its_lease(
    start: StartWorker, producer: Client, make_claims: MakeClaims
) -> None:
    worker = start()
    worker.await_log("ready after")
    until(lambda: producer.fleet.read().workers)
    worker.kill()
    until(lambda: producer.fleet.read().workers[0].state is WorkerState.LOST)
    make_claims("other").lease.reclaim_expired()
    [left] = producer.fleet.read().workers
    assert (left.worker, left.state) == ("other", WorkerState.UNKNOWN)


def test_the_status_of_a_worker_without_a_lease_is_forgotten(
    producer: Client, client: redis.Redis, namespace: str, make_claims: MakeClaims
) -> None:
    """A worker of release 0.1.0 removes the lease of a dead worker and leaves its status."""
    status = WorkerStatus(worker="gone", state=WorkerState.READY)
    client.hset(f"{namespace}:workers", status.worker, status.dump())
    assert producer.fleet.read().workers == ()
    make_claims("other").lease.reclaim_expired()
    assert not client.exists(workers_key(namespace))


def test_a_lost_worker_cannot_be_drained(
    client: redis.Redis, namespace: str, settings: dict[str, str]
) -> None:
    client.zadd(leases_key(namespace), {"lost": 1, "silent": 4_000_000_000})
    for name in ("lost", "silent"):
        done = CliRunner(env=settings).invoke(main, ["workers", "drain", name, "--wait"])
        assert done.exit_code == 1
        assert "is no living worker" in done.output


def test_the_least_busy_workers_are_drained_first(
    producer: Client,
    client: redis.Redis,
    namespace: str,
    settings: dict[str, str],
    make_claims: MakeClaims,
) -> None:
    states = {
        "busy": WorkerState.READY,
        "idle": WorkerState.READY,
        "broken": WorkerState.QUARANTINED,
        "leaving": WorkerState.DRAINING,
    }
    for name, state in states.items():
        make_claims(name).lease.acquire(WorkerStatus(worker=name, state=state).dump())
    client.hset(claims_key(namespace, "busy"), "tag", "{}")
    drain = ["workers", "drain", "--least-busy"]
    done = CliRunner(env=settings).invoke(main, [*drain, "2"])
    assert (done.exit_code, done.output) == (0, "broken  draining\nidle  draining\n")
    assert client.smembers(drain_requests_key(namespace)) == {"broken", "idle"}
    done = CliRunner(env=settings).invoke(main, [*drain, "4"])
    assert (done.exit_code, "that can be drained: 3" in done.output) == (1, True)
    for wrong in ([*drain, "1", "idle"], ["workers", "drain"]):
        assert CliRunner(env=settings).invoke(main, wrong).exit_code == 2


def test_a_worker_that_dies_and_vanishes_while_it_drains_is_lost(
    client: redis.Redis,
    namespace: str,
    settings: dict[str, str],
    make_claims: MakeClaims,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It vanishes between two polls, as if it had ended by itself."""
    other, dying = make_claims("other"), make_claims("dying", lease_s=1)
    status = WorkerStatus(worker=dying.worker, state=WorkerState.READY)
    client.hset(workers_key(namespace), dying.worker, status.dump())

    def is_gone() -> bool:
        other.lease.reclaim_expired()
        return client.zscore(leases_key(namespace), dying.worker) is None

    def vanish(seconds: float) -> None:
        until(is_gone)

    monkeypatch.setattr(workers, "time", SimpleNamespace(sleep=vanish, monotonic=time.monotonic))
    done = CliRunner(env=settings).invoke(main, ["workers", "drain", "dying", "--wait"])
    assert (done.exit_code, done.output) == (1, "dying  lost\n")


def test_queues_are_counted_over_tenants_and_priorities(producer: Client) -> None:
    producer.submit_many(["a", "b"], tenant="gold")
    producer.submit_many(["a", "b", "c"], priority=0)
    status = producer.fleet.read()
    [queue] = status.queues
    assert (queue.model, queue.shape, queue.datasets) == ("default", "native", False)
    assert (queue.waiting, queue.tenants, status.waiting) == (5, 2, 5)
    assert queue.oldest_s is not None
    assert 0 <= queue.oldest_s < 3600


def test_damaged_entries_are_shown_and_break_nothing(
    producer: Client, client: redis.Redis, namespace: str
) -> None:
    client.hset(workers_key(namespace), "odd", "not JSON")
    client.zadd(leases_key(namespace), {"odd": 4_000_000_000, "silent": 4_000_000_000})
    client.sadd(f"{namespace}:queues", f"{namespace}.default.native", "foreign")
    client.set(f"{namespace}.default.native", "a string, not a list")
    client.lpush("foreign", "not JSON")
    status = producer.fleet.read()
    assert [each.state for each in status.workers] == [WorkerState.UNKNOWN] * 2
    assert [(each.shape, each.oldest_s) for each in status.queues] == [("foreign", None)]


@pytest.mark.parametrize("damaged", ["x", "nan", "inf", "-1e300", "9" * 400])
def test_a_damaged_record_has_no_age(
    producer: Client, client: redis.Redis, namespace: str, damaged: str
) -> None:
    client.hset(job_key(namespace, producer.submit("a").id), "submitted_at", damaged)
    [queue] = producer.fleet.read().queues
    assert (queue.waiting, queue.oldest_s) == (1, None)


def test_damaged_counts_are_missing(producer: Client, client: redis.Redis, namespace: str) -> None:
    counts: dict[Any, Any] = {
        "succeeded": "7",
        "cancelled": "9" * 400,
        "failed:a": "9" * 5000,
        "failed:b": "x",
    }
    client.hset(job_ends_key(namespace), mapping=counts)
    client.hset(dead_letter_totals_key(namespace), "dropped", "9" * 5000)
    status = producer.fleet.read()
    assert status.job_ends == {"succeeded": 7}
    assert status.dead_letters_dropped == 0


@pytest.mark.parametrize(
    "key",
    [
        *("workers", "leases", "ends", "later", "dead", "dead:totals", "queues"),
        *("outbox", "outbox:given-up", "claims:w"),
    ],
)
def test_a_key_of_another_type_is_read_as_empty(
    producer: Client, client: redis.Redis, namespace: str, key: str
) -> None:
    client.zadd(f"{namespace}:leases", {"w": 4e9})
    client.delete(f"{namespace}:{key}")
    client.set(f"{namespace}:{key}", "another type")
    status = producer.fleet.read()
    assert (status.waiting, status.in_flight, status.callbacks) == (0, 0, 0)
    assert len(status.workers) == (key != "leases")


def test_dropped_dead_letters_are_counted(
    producer: Client, client: redis.Redis, namespace: str
) -> None:
    letters = DeadLetters(client, namespace, max_bytes=1)
    for number in range(3):
        letters.add("list", f"message {number}", code="c", reason="r", deliveries=1)
    status = producer.fleet.read()
    assert status.dead_letters_dropped > 0
    assert status.dead_letters + status.dead_letters_dropped == 3


def test_shards_in_flight_are_counted_as_the_workers_report_them(
    producer: Client, client: redis.Redis, namespace: str, make_claims: MakeClaims
) -> None:
    for name, shards in {"one": 2, "two": 5}.items():
        claims = make_claims(name)
        status = WorkerStatus(worker=name, state=WorkerState.READY, shards=shards)
        client.hset(workers_key(namespace), name, status.dump())
        client.hset(claims.key, mapping=dict.fromkeys(("1", "2", "3"), "list\0message"))
    status_of_fleet = producer.fleet.read()
    assert (status_of_fleet.in_flight, status_of_fleet.in_flight_shards) == (6, 2 + 3)


def test_a_worker_says_which_of_its_messages_are_shards(
    start: StartWorker, producer: Client, client: redis.Redis, namespace: str, tmp_path: Path
) -> None:
    dataset = planned_dataset(tmp_path / "data", client, namespace, ["a"] * 60)
    dataset.send()
    start(IMAGEFLEET_MODEL="fake:seconds=0.4,capacity=8")

    def all_are_shards() -> bool:
        status = producer.fleet.read()
        return 0 < status.in_flight_shards == status.in_flight

    until(all_are_shards)


def test_newer_workers_may_say_more(producer: Client, client: redis.Redis, namespace: str) -> None:
    reported = WorkerStatus(worker="new", state=WorkerState.READY, model="m").model_dump()
    client.hset(workers_key(namespace), "new", json.dumps({**reported, "colour": "blue"}))
    client.zadd(leases_key(namespace), {"new": 4_000_000_000})
    assert producer.fleet.read().workers[0].model == "m"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_command_shows_workers_and_queues(
    producer: Client,
    client: redis.Redis,
    namespace: str,
    settings: dict[str, str],
    flags: list[str],
) -> None:
    said = WorkerStatus(
        worker="host:1:ab", state=WorkerState.READY, model="m", last_error="\x1b[31mred"
    )
    client.hset(f"{namespace}:workers", said.worker, said.dump())
    client.zadd(leases_key(namespace), {"host:1:ab": 4_000_000_000})
    producer.submit("a")
    done = CliRunner(env=settings).invoke(main, ["fleet", *flags])
    assert done.exit_code == 0
    assert "\x1b" not in done.output
    for word in ("host:1:ab", "ready", "default", "red"):
        assert word in done.output


def test_the_latest_error_has_its_age_and_is_marked_once_the_worker_has_recovered(
    start: StartWorker, producer: Client, settings: dict[str, str], tmp_path: Path
) -> None:
    failing = tmp_path / "failing"
    start(IMAGEFLEET_MODEL=f"fake:seconds=0.02,failing={failing}").await_log("ready after")
    until(lambda: producer.fleet.read().workers)
    failing.touch()
    job = producer.submit("it waits until the devices are healthy")
    until(lambda: "told to fail" in producer.fleet.read().workers[0].last_error)
    [status] = producer.fleet.read().workers
    assert not status.recovered
    assert status.last_error_at > status.started_at
    age_s = status.last_error_age_s
    assert age_s is not None
    assert 0 <= age_s <= status.reported_at - status.started_at
    line = _error_line(settings)
    assert re.search(r"^latest error of \S+, [0-9.]+ (s|min) ago: ", line), line
    failing.unlink()
    job.result(timeout=900)
    until(lambda: producer.fleet.read().workers[0].recovered)
    line = _error_line(settings)
    assert re.search(r"^latest error of \S+, [0-9.]+ (s|min) ago, recovered since: ", line), line


def _error_line(settings: dict[str, str]) -> str:
    shown = CliRunner(env=settings).invoke(main, ["fleet"]).output
    [line] = [line for line in shown.splitlines() if line.startswith("latest error of ")]
    return line


def test_an_older_worker_s_error_has_no_age() -> None:
    said = {"worker": "a:1:b", "state": "ready", "last_error": "boom", "started_at": 5.0}
    status = WorkerStatus.model_validate(said)
    assert (status.last_error_age_s, status.recovered) == (None, False)


def test_500_slow_clients_keep_no_probe_from_a_worker(start: StartWorker) -> None:
    worker = start(IMAGEFLEET_METRICS_PORT="0")
    worker.await_log("ready after")
    port = _port(worker)
    until(lambda: http_get(port, "/readyz")[0] == 200)  # once it takes work
    with SlowClients(port, 500):
        for path, answer in (("/healthz", "ok\n"), ("/readyz", "ready\n")):
            assert [http_get(port, path) for _ in range(50)] == [(200, answer)] * 50


def test_sigterm_makes_a_worker_unready(start: StartWorker, producer: Client) -> None:
    worker = start(IMAGEFLEET_METRICS_PORT="0", IMAGEFLEET_MODEL="fake:seconds=1,capacity=1")
    port = _port(worker)
    job = producer.submit("it takes four seconds")
    until(lambda: job.status().started_at is not None)
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: http_get(port, "/readyz") == (503, "draining\n"))
    assert worker.wait() == 0


def test_the_log_can_be_json(start: StartWorker, producer: Client) -> None:
    with signed_s3() as store, FaultyS3(pass_on(store)) as door:
        worker = start(
            **store.credentials.environment(),
            IMAGEFLEET_STORAGE_URL=f"s3://{BUCKET}?endpoint_url={door.endpoint_url}",
            IMAGEFLEET_LOG_FORMAT="json",
            IMAGEFLEET_STORAGE_ULR="misspelled",
        )
        worker.await_log("ready after")
        door.fault = error(503, "SlowDown")
        job = producer.submit("stored later", id="a-job", tenant="gold")
        worker.await_log("failed, retry in")
        door.fault = pass_on(store)
        job.result(timeout=900)
    assert worker.terminate() == 0
    # Celery prints a word at each signal, and Python a warning if Celery runs as root.
    lines = [json.loads(line) for line in worker.output().splitlines()]
    for words in ("IMAGEFLEET_STORAGE_ULR", "Warm shutdown"):
        assert any(words in line["message"] for line in lines), worker.output()
    assert {"time", "level", "logger", "message", "thread"} <= set.intersection(*map(set, lines))
    assert {"a-job"} == {line["job_id"] for line in lines if line.get("tenant") == "gold"}
    assert "celery@" not in worker.output()
