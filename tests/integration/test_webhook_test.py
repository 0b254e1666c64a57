"""`imagefleet webhooks test`, and the secrets of tenants: a worker, a receiver, and a shell."""

import json
import subprocess
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest
import redis

from imagefleet import Client
from imagefleet.shared.jobs.redis_keys import outbox_messages_key
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.signature import new_secret
from tests.support import forked
from tests.support.jobs import finish
from tests.support.processes import StartWorker, until
from tests.support.receiver import Receiver, Respond, respond_with

FLEET, GOLD = new_secret(), new_secret()

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(settings: dict[str, str]) -> Run:
    """Return a function that runs `imagefleet webhooks test`."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = ("-m", "imagefleet.producer", "webhooks", "test")
        return forked.run(*command, *arguments, environment=settings)

    return run


@pytest.fixture
def worker(start: StartWorker, producer: Client) -> None:
    """A worker with a secret for the fleet and one for the tenant gold."""
    start(
        IMAGEFLEET_LEASE_S="600",  # it counts as alive also while it is suspended
        IMAGEFLEET_WEBHOOK_SECRETS=FLEET,
        IMAGEFLEET_WEBHOOK_TENANT_SECRETS=f"gold={GOLD}",
        IMAGEFLEET_CALLBACK_ALLOW="127.0.0.1",
    ).await_log("ready after")
    until(producer.workers)  # it takes its lease after that line


def _respond(status: int, text: str) -> Respond:
    def respond(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.send_response(status)
        handler.send_header("content-length", str(len(text.encode())))
        handler.end_headers()
        handler.wfile.write(text.encode())

    return respond


@pytest.mark.usefixtures("worker")
def test_the_answer_of_the_receiver_is_printed(
    run: Run, client: redis.Redis, namespace: str
) -> None:
    with Receiver([FLEET], _respond(200, "thank\x1b you" + 300 * "u")) as receiver:
        done = run(receiver.url)
        assert (done.returncode, done.stderr) == (0, "")
        verdict, status, ms, answer = done.stdout.rstrip("\n").split("  ")
        assert (verdict, status, ms.endswith(" ms")) == ("delivered", "200", True)
        assert answer.startswith("thank\\x1b youuu")
        assert len(answer) == 200
        [delivery] = receiver.deliveries
    assert delivery.verified
    event = json.loads(delivery.body)
    assert event["type"] == "webhook.test"
    assert event["data"]["id"].startswith("test-")
    assert not client.keys(f"{namespace}:outbox:log:*")
    assert not client.hlen(outbox_messages_key(namespace))


@pytest.mark.usefixtures("worker")
def test_a_failed_test_says_why_and_is_not_repeated(
    run: Run, producer: Client, client: redis.Redis, namespace: str
) -> None:
    with Receiver([FLEET], _respond(500, "out of order")) as receiver:
        done = run(receiver.url, "--json")
    row = json.loads(done.stdout)
    assert done.returncode == 1
    assert "a job's callback would be sent again" in done.stderr
    assert row.pop("ms") >= 0
    assert row == {
        "verdict": "retry",
        "status": 500,
        "reason": "Internal Server Error",
        "answer": "out of order",
    }
    done = run("http://10.0.0.1/x")
    assert done.returncode == 1
    assert done.stdout.startswith("refused  no answer ")
    assert "10.0.0.1" in done.stdout
    assert not client.hlen(outbox_messages_key(namespace))
    assert not producer.outbox.entries()


@pytest.mark.usefixtures("worker")
def test_an_address_that_answered_410_is_tested_and_stays_as_it_was(
    run: Run, producer: Client
) -> None:
    with Receiver([FLEET], respond_with(410, 204)) as receiver:
        assert run(receiver.url).stdout.startswith("gone  410 ")
        assert not producer.outbox.is_disabled(receiver.url)
        Outbox(producer.connection.redis, producer.connection.namespace).disable(receiver.url)
        done = run(receiver.url)
        assert (done.returncode, done.stdout.split("  ")[0]) == (0, "delivered")
        assert "answered 410 before" in done.stderr
        assert producer.outbox.is_disabled(receiver.url)


@pytest.mark.usefixtures("worker")
def test_a_tenant_signs_with_its_own_secret_only(run: Run, producer: Client) -> None:
    with Receiver([GOLD]) as gold, Receiver([FLEET]) as fleet:
        for receiver, tenant in ((gold, "gold"), (fleet, "tin"), (fleet, None), (gold, None)):
            job = producer.submit("a", tenant=tenant, callback_url=receiver.url)
            finish(producer, [job])
        assert [each.verified for each in fleet.wait_for(2)] == [True, True]
        assert [each.verified for each in gold.wait_for(2)] == [True, False]
        assert run(gold.url, "--tenant", "gold").returncode == 0
        assert gold.wait_for(3)[-1].verified


def test_without_a_worker_nothing_is_sent(run: Run, client: redis.Redis, namespace: str) -> None:
    done = run("http://127.0.0.1:1/")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "imagefleet: no worker is alive, and only workers send callbacks; start one\n"
    )
    assert not client.hlen(outbox_messages_key(namespace))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ftp://a"], "url='ftp://a': must be an http:// or https:// address"),
        (["http://a", "--tenant", "a b"], "tenant='a b': must be 1 to 128 letters"),
    ],
)
def test_a_wrong_address_or_tenant_is_refused(
    run: Run, arguments: list[str], sentence: str
) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert sentence in done.stderr


def test_a_test_that_no_worker_sends_in_time_is_withdrawn(
    run: Run, client: redis.Redis, namespace: str
) -> None:
    seconds, _ = client.time()
    client.zadd(f"{namespace}:leases", {"a worker that hangs": seconds + 600})
    done = run("http://127.0.0.1:1/", "--timeout", "0.5")
    assert done.returncode == 1
    assert "no worker has sent the event within 0.5 s" in done.stderr
    assert not client.hlen(outbox_messages_key(namespace))
