"""`imagefleet dead-letters` and `imagefleet webhooks` as a shell runs them."""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis

from imagefleet import Client
from imagefleet.shared.bulk.run_events import RunReceiver
from imagefleet.shared.bulk.runs import RunRecords
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.model import JobError, State
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import DeliveryOutcome, DeliveryVerdict
from tests.support import forked
from tests.support.datasets import RUN

Run = Callable[..., "subprocess.CompletedProcess[str]"]

REFUSED = DeliveryOutcome(
    verdict=DeliveryVerdict.REFUSED, reason="hooks.example is 10.0.0.1: private", ms=3
)


@pytest.fixture
def run(redis_server: LocalRedisServer, namespace: str) -> Run:
    environment = {"IMAGEFLEET_REDIS_URL": redis_server.url, "IMAGEFLEET_NAMESPACE": namespace}

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return forked.run("-m", "imagefleet.producer", *arguments, environment=environment)

    return run


@pytest.fixture
def producer(redis_server: LocalRedisServer, namespace: str) -> Iterator[Client]:
    with Client(redis_server.url, namespace=namespace) as client:
        yield client


def _add_dead_letter(client: redis.Redis, producer: Client, namespace: str, job_id: str) -> str:
    """Submit a job, fail it and add its message to the dead letters. Return the letter's id."""
    job = producer.submit("a", id=job_id, callback_url="https://hooks.example/x")
    queue = list_key(f"{namespace}.default.native", 3)
    reason = JobError(code="device_error", message="no luck")
    JobRecords(client, namespace, 3600).fail(job.id, "", reason, None)
    letters = DeadLetters(client, namespace)
    letter = letters.add(
        queue, str(client.rpop(queue)), code=reason.code, reason=reason.message, deliveries=2
    )
    return letter.id


def test_dead_letters_are_listed_shown_redriven_and_dropped(
    run: Run, producer: Client, client: redis.Redis, namespace: str
) -> None:
    first = _add_dead_letter(client, producer, namespace, "cat-1")
    second = _add_dead_letter(client, producer, namespace, "cat-2")
    listed = run("dead-letters", "list").stdout.splitlines()
    assert {line.split()[0] for line in listed} == {first, second}
    assert all("device_error  -  no luck" in line for line in listed)
    rows = [json.loads(line) for line in run("dead-letters", "list", "--json").stdout.splitlines()]
    assert {row["job_id"] for row in rows} == {"cat-1", "cat-2"}
    lines = run("dead-letters", "show", first, "--json").stdout.splitlines()
    shown = json.loads(run("dead-letters", "show", first).stdout)
    assert [json.loads(line) for line in lines] == [shown]
    assert shown["message"].startswith("{")
    assert shown["arguments"]["request"]["prompt"] == "a"
    assert run("dead-letters", "redrive", "cat-1").stdout == f"{first}  cat-1  queued again\n"
    assert producer.get("cat-1").status().state is State.QUEUED
    assert run("dead-letters", "drop", second).stdout == f"{second}  dropped\n"
    assert run("dead-letters", "list").stdout == ""
    assert producer.get("cat-2").status().state is State.FAILED


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (
            '[[], {"request": {"prompt": "größer \\ud800"}}, {}]',
            {"request": {"prompt": "größer \ud800"}},
        ),
        ("[[], " + "[" * 990 + "]" * 990 + "]", None),
        ("not json", None),
    ],
)
def test_show_prints_letters_with_any_content(
    run: Run, client: redis.Redis, namespace: str, body: str, arguments: object
) -> None:
    message = json.dumps({"headers": {"id": "odd"}, "properties": {}, "body": body})
    DeadLetters(client, namespace).add("q", message, code="c", reason="r", deliveries=1)
    shown = json.loads(run("dead-letters", "show", "odd").stdout)
    assert (shown["message"], shown["arguments"]) == (message, arguments)


def test_an_unknown_letter_is_an_error_with_exit_code_1(run: Run) -> None:
    done = run("dead-letters", "redrive", "nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no dead letter has the id or the job id 'nobody'" in done.stderr


@pytest.mark.parametrize("command", ["redrive", "drop", "show"])
def test_a_wrong_id_does_not_keep_the_others_from_being_done(
    run: Run, producer: Client, client: redis.Redis, namespace: str, command: str
) -> None:
    letters = [_add_dead_letter(client, producer, namespace, job_id) for job_id in ("a", "b")]
    done = run("dead-letters", command, "a", "nobody", "b")
    assert done.returncode == 1
    assert [letter in done.stdout for letter in letters] == [True, True]
    assert done.stderr == "imagefleet: no dead letter has the id or the job id 'nobody'\n"
    assert bool(producer.dead_letters.read()) is (command == "show")


def test_the_letter_of_a_deleted_job_is_not_redriven_for_its_successor(
    run: Run, producer: Client, client: redis.Redis, namespace: str
) -> None:
    letter = _add_dead_letter(client, producer, namespace, "a")
    other = _add_dead_letter(client, producer, namespace, "b")
    JobRecords(client, namespace, 3600).delete_ended("a")
    producer.submit("another prompt", id="a")
    done = run("dead-letters", "redrive", "a", "b")
    assert (done.returncode, done.stdout) == (1, f"{other}  b  queued again\n")
    assert f"dead letter '{letter}' is not redriven: the job 'a' has other" in done.stderr


def _give_up_callback(client: redis.Redis, producer: Client, namespace: str) -> Outbox:
    """Cancel job cat-1 and give up its callback, whose address is refused."""
    producer.submit("a", id="cat-1", callback_url="https://hooks.example/x").cancel()
    outbox = Outbox(client, namespace)
    [message] = outbox.claim(1, 60)
    outbox.give_up(message, REFUSED)
    return outbox


def test_a_refused_callback_is_listed_with_its_reason_and_can_be_replayed(
    run: Run, producer: Client, client: redis.Redis, namespace: str
) -> None:
    outbox = _give_up_callback(client, producer, namespace)
    [line] = run("webhooks", "list", "--failed").stdout.splitlines()
    assert line.startswith("cat-1.cancelled  given up")
    assert "refused: hooks.example is 10.0.0.1: private (3 ms)" in line
    [row] = run("webhooks", "list", "--job", "cat-1", "--json").stdout.splitlines()
    assert json.loads(row)["last"]["verdict"] == "refused"
    outbox.disable("https://hooks.example/x")
    assert run("webhooks", "replay", "cat-1.cancelled").stdout == "cat-1.cancelled  due now\n"
    assert not outbox.is_disabled("https://hooks.example/x")
    assert run("webhooks", "list", "--failed").stdout == ""
    [message] = outbox.claim(1, 60)
    assert json.loads(message.body)["type"] == "job.cancelled"


def test_the_final_callback_of_a_job_can_be_replayed_after_its_delivery(
    run: Run, producer: Client, client: redis.Redis, namespace: str
) -> None:
    producer.submit("a", id="cat-1", callback_url="https://hooks.example/x").cancel()
    outbox = Outbox(client, namespace)
    [message] = outbox.claim(1, 60)
    outbox.mark_delivered(message, DeliveryOutcome(verdict=DeliveryVerdict.DELIVERED, status=204))
    assert "cat-1.cancelled  delivered" in run("webhooks", "list", "--job", "cat-1").stdout
    assert run("webhooks", "replay", "--job", "cat-1").returncode == 0
    assert [each.id for each in outbox.claim(1, 60)] == ["cat-1.cancelled"]


def test_callbacks_are_replayed_although_one_id_is_wrong(
    run: Run, producer: Client, client: redis.Redis, namespace: str
) -> None:
    outbox = _give_up_callback(client, producer, namespace)
    done = run("webhooks", "replay", "ghost.failed", "cat-1.cancelled")
    assert (done.returncode, done.stdout) == (1, "cat-1.cancelled  due now\n")
    assert "no given-up callback 'ghost.failed'" in done.stderr
    assert len(outbox.claim(2, 60)) == 1


def test_the_callbacks_of_an_unknown_job_are_an_error(run: Run, producer: Client) -> None:
    done = run("webhooks", "list", "--job", "ghost")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("imagefleet: no job 'ghost' here")
    producer.submit("a", id="quiet")
    done = run("webhooks", "list", "--job", "quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no callbacks\n")


def _start_run(client: redis.Redis, namespace: str) -> RunRecords:
    """Start a run whose receiver calls it run_1, as one that was ordered over HTTP."""
    runs = RunRecords(client, namespace, 3600)
    runs.start(replace(RUN, receiver=RunReceiver(url="https://hooks.example/x", name="run_1")))
    return runs


def test_callbacks_of_a_run_are_listed_and_its_end_is_sent_again(
    run: Run, client: redis.Redis, namespace: str
) -> None:
    runs, outbox = _start_run(client, namespace), Outbox(client, namespace)
    assert run("webhooks", "list", "--run", RUN.id).stderr == "no callbacks\n"
    runs.cancel(RUN.id)
    [line] = run("webhooks", "list", "--run", RUN.id).stdout.splitlines()
    assert line.startswith("run_1.ended  waiting")
    for end in (outbox.mark_delivered, outbox.give_up):
        outbox.disable("https://hooks.example/x")
        [message] = outbox.claim(2, 60)
        end(message, DeliveryOutcome(verdict=DeliveryVerdict.GONE, status=410))
        assert run("webhooks", "replay", "--run", RUN.id).stdout == "run_1.ended  due now\n"
        assert not outbox.is_disabled("https://hooks.example/x")
    [again] = outbox.claim(2, 60)
    assert json.loads(again.body)["data"]["state"] == "cancelled"


def test_the_end_of_a_run_that_waits_is_due_now_and_stays_one_event(
    run: Run, client: redis.Redis, namespace: str
) -> None:
    runs, outbox = _start_run(client, namespace), Outbox(client, namespace)
    runs.cancel(RUN.id)
    [message] = outbox.claim(2, 60)
    outbox.retry(message, 3600, DeliveryOutcome(verdict=DeliveryVerdict.RETRY, status=503))
    assert outbox.claim(2, 60) == []
    outbox.disable("https://hooks.example/x")
    assert run("webhooks", "replay", "--run", RUN.id).stdout == "run_1.ended  due now\n"
    assert not outbox.is_disabled("https://hooks.example/x")
    [again] = outbox.claim(2, 60)
    assert (again.id, again.occurrence) == (message.id, message.occurrence)
    assert outbox.count_waiting() == 1


def test_a_run_is_found_by_the_id_that_its_events_have(
    run: Run, client: redis.Redis, namespace: str
) -> None:
    runs, outbox = _start_run(client, namespace), Outbox(client, namespace)
    runs.start(replace(RUN, id="without-receiver"))
    runs.cancel(RUN.id)
    [message] = outbox.claim(2, 60)
    outbox.mark_delivered(message, DeliveryOutcome(verdict=DeliveryVerdict.DELIVERED, status=204))
    assert run("webhooks", "replay", "--run", "run_1").stdout == "run_1.ended  due now\n"
    waiting, delivered = run("webhooks", "list", "--run", "run_1").stdout.splitlines()
    assert waiting.startswith("run_1.ended  waiting")
    assert delivered.startswith("run_1.ended  delivered")
    assert "'run_2' is neither a run" in run("webhooks", "list", "--run", "run_2").stderr


def test_the_end_of_a_run_without_a_receiver_or_an_end_cannot_be_sent(
    run: Run, client: redis.Redis, namespace: str
) -> None:
    runs = _start_run(client, namespace)
    early = run("webhooks", "replay", "--run", RUN.id)
    assert (early.returncode, early.stdout) == (1, "")
    assert early.stderr == f"imagefleet: run {RUN.id} has not ended yet: it is running\n"
    runs.start(replace(RUN, id="other"))
    runs.cancel("other")
    done = run("webhooks", "replay", "--run", "other")
    assert (done.returncode, done.stderr) == (1, "imagefleet: run other has no callback_url\n")
    assert run("webhooks", "list", "--run", "other").stderr == "no callbacks\n"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["cat-1.failed"], 1, "no given-up callback"),
        (["--job", "nobody"], 1, "no job 'nobody'"),
        (["--run", "./nowhere"], 1, "is neither a run in this Redis nor a destination"),
        (["--run", "a", "--job", "b"], 2, "give the ids of callbacks"),
        ([], 2, "give the ids of callbacks"),
    ],
)
def test_replay_reports_why_it_cannot_send(
    run: Run, arguments: list[str], code: int, sentence: str
) -> None:
    done = run("webhooks", "replay", *arguments)
    assert done.returncode == code
    assert sentence in done.stderr
