"""Callbacks go from the outbox to their receivers: real Redis, real HTTP, checked signatures."""

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest
from pydantic import SecretStr
from redis import Redis

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.webhooks.outbox import Outbox
from imagefleet.shared.webhooks.outbox_message import DeliveryVerdict, OutboxMessage
from imagefleet.shared.webhooks.signature import new_secret, webhook_id
from imagefleet.shared.webhooks.tenant_secrets import WebhookSecrets
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.process import metrics
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.start_delivery import start_delivery
from imagefleet.worker.webhooks import delivery_loop
from imagefleet.worker.webhooks.delivery_loop import DeliveryLoop
from imagefleet.worker.webhooks.receiver_limits import MAX_SENDERS, SenderPermits
from imagefleet.worker.webhooks.sender import Sender
from tests.support.hanging import HangingServer, resolve_to
from tests.support.processes import ROOT, until
from tests.support.receiver import Receiver, respond_with

SECRET = new_secret()
ALLOW_LOCALHOST = AllowList.parse(["127.0.0.1"])


@pytest.fixture
def outbox(client: Redis, namespace: str) -> Outbox:
    return Outbox(client, namespace)


@pytest.fixture
def _long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a test may last longer than a claimed callback is kept from others."""
    monkeypatch.setattr(delivery_loop, "_LEASE_S", 600.0)


@contextmanager
def _delivering(
    outbox: Outbox, delays_s: Sequence[float] = (0.01,) * 5, allow: AllowList = ALLOW_LOCALHOST
) -> Iterator[DeliveryLoop]:
    loop = DeliveryLoop(
        outbox, Sender(WebhookSecrets(fleet=[SECRET]), allow, timeout_s=300), delays_s
    )
    loop.start()
    try:
        yield loop
    finally:
        loop.stop(timeout_s=10)


def _message(url: str, name: str = "cat-1.succeeded", tenant: str = "") -> OutboxMessage:
    body = '{"type": "job.succeeded"}'
    return OutboxMessage(id=name, job_id="cat-1", url=url, body=body, tenant=tenant)


def test_each_pending_callback_arrives_once_and_the_outbox_is_empty(outbox: Outbox) -> None:
    with Receiver([SECRET]) as receiver, _delivering(outbox):
        for number in range(50):
            outbox.add(_message(receiver.url, f"cat-{number}.succeeded"))
        receiver.wait_for(50)
        until(lambda: outbox.count_waiting() == 0)
    assert len(receiver.deliveries) == 50
    assert all(delivery.verified for delivery in receiver.deliveries)
    assert len({delivery.headers["webhook-id"] for delivery in receiver.deliveries}) == 50


def test_the_event_that_tests_a_receiver_is_not_counted_as_a_callback(outbox: Outbox) -> None:
    tries = metrics.CALLBACKS.labels(DeliveryVerdict.DELIVERED)
    before = tries._value.get()
    with Receiver([SECRET]) as receiver, _delivering(outbox):
        outbox.add(OutboxMessage.for_test(receiver.url))
        outbox.add(_message(receiver.url))
        receiver.wait_for(2)
        until(lambda: outbox.count_waiting() == 0)
    assert tries._value.get() == before + 1


def test_a_callback_is_retried_until_its_receiver_accepts_it(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Receiver([SECRET], respond_with(500, 302, 404, 204)) as receiver, _delivering(outbox):
        outbox.add(_message(receiver.url))
        receiver.wait_for(4)
        until(lambda: outbox.count_waiting() == 0)
    assert len(receiver.deliveries) == 4
    assert all(delivery.verified for delivery in receiver.deliveries)
    ids = {delivery.headers["webhook-id"] for delivery in receiver.deliveries}
    assert ids == {webhook_id("cat-1.succeeded", _message("").body)}
    assert [entry.status for entry in outbox.attempts_of("cat-1")] == [204, 404, 302, 500]
    assert "callback cat-1.succeeded: 404 Not Found; retry in" in caplog.text


def test_a_callback_is_given_up_after_the_last_try_and_a_replay_delivers_it(outbox: Outbox) -> None:
    statuses = respond_with(500, 500, 500, 204)
    with Receiver([SECRET], statuses) as receiver, _delivering(outbox, delays_s=(0.01, 0.01)):
        outbox.add(_message(receiver.url))
        until(lambda: len(outbox.entries(failed=True)) == 1)
        assert len(receiver.deliveries) == 3
        outbox.replay("cat-1.succeeded")
        until(lambda: outbox.count_waiting() == 0)
    assert len(receiver.deliveries) == 4
    assert outbox.entries(failed=True) == []


def test_a_receiver_that_answered_410_gets_no_further_callback(outbox: Outbox) -> None:
    with Receiver([SECRET], respond_with(410)) as receiver, _delivering(outbox):
        outbox.add(_message(receiver.url, "first"))
        until(lambda: len(outbox.entries(failed=True)) == 1)
        outbox.add(_message(receiver.url, "second"))
        until(lambda: len(outbox.entries(failed=True)) == 2)
    assert len(receiver.deliveries) == 1


def test_a_callback_to_a_refused_address_is_given_up_at_once(outbox: Outbox) -> None:
    with Receiver([SECRET]) as receiver, _delivering(outbox, allow=AllowList()):
        outbox.add(_message(receiver.url))
        until(lambda: len(outbox.entries(failed=True)) == 1)
    assert receiver.deliveries == []
    [entry] = outbox.entries(failed=True)
    assert entry.last is not None
    assert entry.last.verdict is DeliveryVerdict.REFUSED
    assert "loopback" in entry.last.reason


def test_a_callback_claimed_by_a_dead_worker_is_sent_by_another(outbox: Outbox) -> None:
    with Receiver([SECRET]) as receiver:
        outbox.add(_message(receiver.url))
        outbox.claim(1, 0.1)
        with _delivering(outbox):
            receiver.wait_for(1)


def test_a_receiver_that_hangs_does_not_delay_the_others(outbox: Outbox) -> None:
    released = threading.Event()

    def hang(handler: BaseHTTPRequestHandler, number: int) -> None:
        released.wait(300)
        handler.send_response(204)
        handler.end_headers()

    with Receiver([SECRET], hang) as slow, Receiver([SECRET]) as quick, _delivering(outbox):
        for number in range(40):
            outbox.add(_message(slow.url, f"slow-{number}"))
        outbox.add(_message(quick.url, "quick"))
        quick.wait_for(1)
        assert len(slow.deliveries) <= 8
        released.set()


def _add_many(outbox: Outbox, urls: Sequence[str], each: int = 3, tenant: str = "") -> None:
    for turn in range(each):
        for number, url in enumerate(urls):
            outbox.add(_message(url, f"hang-{number}-{turn}", tenant))


def _spellings(port: int) -> list[str]:
    """Return 300 addresses of one server: names in any case, with a full stop, and numbers."""
    hosts = ["127.2", "0x7f000002", "2130706434", "127.0.0.2", "hanging."]
    for number in range(100):
        cases = f"{number:07b}"
        letters = zip("hanging", cases, strict=True)
        name = "".join(letter.upper() if case == "1" else letter for letter, case in letters)
        hosts += [name, f"{name}."][: 1 + number % 2]
    hosts += [f"n{number}.hanging" for number in range(300 - len(hosts))]
    return [f"http://{host}:{port}/x" for host in hosts]


@pytest.mark.usefixtures("_long_leases")
def test_300_spellings_of_a_hanging_host_do_not_delay_a_receiver_that_is_new(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow = AllowList.parse(["127.0.0.0/8"])
    resolve_to(monkeypatch, "hanging", "127.0.0.2")
    with HangingServer("127.0.0.2") as server, Receiver([SECRET]) as good:
        urls = _spellings(server.port)
        assert len(set(urls)) == 300
        _add_many(outbox, urls)
        with _delivering(outbox, allow=allow):
            until(lambda: server.connections() >= 5)
            outbox.add(_message(good.url, "good"))
            good.wait_for(1)
            until(lambda: outbox.count_waiting() == 900)
            assert server.connections() <= 10
            assert [entry.id for entry in outbox.entries(limit=1000) if entry.attempts] == []
            server.end()


@pytest.mark.usefixtures("_long_leases")
def test_hanging_hosts_at_300_addresses_do_not_delay_a_receiver_that_answered_before(
    outbox: Outbox,
) -> None:
    allow = AllowList.parse(["127.0.0.0/8"])
    with (
        HangingServer("0.0.0.0") as server,
        Receiver([SECRET]) as good,
        _delivering(outbox, allow=allow),
    ):
        outbox.add(_message(good.url, "first"))
        until(lambda: outbox.count_waiting() == 0)
        hosts = [f"127.0.{n // 200 + 1}.{n % 200 + 1}" for n in range(300)]
        _add_many(outbox, [f"http://{host}:{server.port}/" for host in hosts], each=1)
        until(lambda: server.connections() >= 13)
        outbox.add(_message(good.url, "second"))
        good.wait_for(2)
        until(lambda: outbox.count_waiting() == 300)
        assert [entry.id for entry in outbox.entries(limit=1000) if entry.attempts] == []
        server.end()


@pytest.mark.usefixtures("_long_leases")
def test_a_tenant_with_300_hanging_callbacks_leaves_the_address_to_other_tenants(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are customers of one CDN: other names, the same address."""
    resolve_to(monkeypatch, "cdn", "127.0.0.1")
    with HangingServer("127.0.0.1") as server, Receiver([SECRET]) as good:
        urls = [f"http://n{number}.cdn:{server.port}/" for number in range(30)]
        _add_many(outbox, urls, each=10, tenant="loud")
        with _delivering(outbox):
            until(lambda: server.connections() >= 10)
            for name in ("good.cdn", "n1.cdn"):
                outbox.add(_message(f"http://{name}:{good.port}/", name, "quiet"))
            good.wait_for(2)
            until(lambda: outbox.count_waiting() == 300)
            server.end()


@pytest.mark.usefixtures("_long_leases")
def test_a_tenant_whose_receivers_hang_leaves_the_same_receiver_to_other_tenants(
    outbox: Outbox,
) -> None:
    """Both send to one service, and it hangs for the paths of one of them."""
    released = threading.Event()

    def hang_if_loud(handler: BaseHTTPRequestHandler, number: int) -> None:
        if handler.path == "/loud":
            released.wait(300)
        handler.send_response(204)
        handler.end_headers()

    with Receiver([SECRET], hang_if_loud) as service, _delivering(outbox):
        loud, quiet = (f"http://127.0.0.1:{service.port}/{name}" for name in ("loud", "quiet"))
        _add_many(outbox, [loud], each=300, tenant="loud")
        service.wait_for(8)
        outbox.add(_message(quiet, "quiet", "quiet"))
        until(lambda: "/quiet" in {delivery.path for delivery in service.deliveries})
        released.set()


@pytest.mark.usefixtures("_long_leases")
def test_a_tenant_with_hanging_hosts_at_300_addresses_leaves_senders_to_other_tenants(
    outbox: Outbox,
) -> None:
    allow = AllowList.parse(["127.0.0.0/8"])
    with HangingServer("0.0.0.0") as server, Receiver([SECRET]) as good:
        hosts = [f"127.0.{n // 200 + 1}.{n % 200 + 1}" for n in range(300)]
        urls = [f"http://{host}:{server.port}/" for host in hosts]
        _add_many(outbox, urls, each=1, tenant="loud")
        with _delivering(outbox, allow=allow):
            until(lambda: server.connections() >= 13)
            outbox.add(_message(good.url, "new", "quiet"))
            good.wait_for(1)
            until(lambda: outbox.count_waiting() == 300)
            server.end()


def test_delivery_continues_after_redis_was_killed(
    own_redis: LocalRedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(own_redis.url, retries=0)
    outbox = Outbox(client, namespace)
    with Receiver([SECRET]) as receiver, _delivering(outbox):
        own_redis.kill()
        until(lambda: "now: Redis does not answer" in caplog.text)
        own_redis.start()
        outbox.add(_message(receiver.url))
        receiver.wait_for(1)
    client.close()


def test_an_outbox_that_does_not_answer_keeps_no_sender_from_those_of_other_lanes(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, permits = threading.Event(), SenderPermits()
    monkeypatch.setattr(outbox, "mark_delivered", lambda *_: answers.wait())
    sender = Sender(WebhookSecrets(fleet=[SECRET]), ALLOW_LOCALHOST)
    with Receiver([SECRET]) as receiver:
        loop = DeliveryLoop(outbox, sender, permits=permits)
        loop.start()
        outbox.add(_message(receiver.url))
        receiver.wait_for(1)
        until(lambda: permits.free().senders == MAX_SENDERS)
        answers.set()
        loop.stop(timeout_s=10)


def test_a_worker_without_secrets_sends_unsigned_callbacks_and_logs_it(
    outbox: Outbox, client: Redis, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = WorkerSettings(namespace=namespace, callback_allow=("127.0.0.1",))
    with caplog.at_level(logging.WARNING), Receiver() as receiver:
        loop = start_delivery(Lanes.single(client, namespace), settings, lambda: 1)
        outbox.add(_message(receiver.url))
        receiver.wait_for(1)
        loop.stop()
    assert "webhook-signature" not in receiver.deliveries[0].headers
    assert "without a signature" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [{"webhook_secrets": (SecretStr("whsec_no"),)}, {"callback_allow": ("10.0.0.0/99",)}],
)
def test_invalid_delivery_settings_are_configuration_errors(
    client: Redis, namespace: str, wrong: dict[str, tuple[object, ...]]
) -> None:
    settings = WorkerSettings.model_validate({"namespace": namespace, **wrong})
    with pytest.raises(ConfigurationError):
        start_delivery(Lanes.single(client, namespace), settings, lambda: 1)


def test_a_worker_ends_when_its_delivery_loop_fails() -> None:
    program = (
        "import threading; from imagefleet.worker.webhooks.delivery_loop import DeliveryLoop;"
        "DeliveryLoop(None, None).start(); threading.Event().wait(30)"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True)
    assert ended.returncode == ExitCode.SOFTWARE
