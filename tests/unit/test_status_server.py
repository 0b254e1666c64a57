"""What Prometheus, Kubernetes and systemd see of a worker process."""

import socket
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.webhooks.outbox_message import DeliveryVerdict
from imagefleet.worker.process import metrics
from imagefleet.worker.process.status_server import StatusServer
from imagefleet.worker.process.systemd import notify_systemd
from tests.support.http_client import http_get


def test_readyz_says_why_a_worker_takes_no_work() -> None:
    reason: str | None = "draining"
    port = StatusServer("127.0.0.1", 0, lambda: reason, "images").start()
    assert http_get(port, "/healthz") == (200, "ok\n")
    assert http_get(port, "/readyz") == (503, "draining\n")
    reason = None
    assert http_get(port, "/readyz") == (200, "ready\n")
    assert http_get(port, "/") == (404, "there are /metrics, /healthz and /readyz\n")


def test_metrics_can_be_parsed_and_count() -> None:
    port = StatusServer("127.0.0.1", 0, lambda: None, "images").start()

    def renewals() -> float:
        families = text_string_to_metric_families(http_get(port, "/metrics")[1])
        samples = {each.name: each.value for family in families for each in family.samples}
        return samples["imagefleet_lease_renewals_total"]

    assert 'imagefleet_lease_renewals_total{fleet="images"}' in http_get(port, "/metrics")[1]
    before = renewals()
    metrics.LEASE_RENEWALS.inc(3)
    assert renewals() == before + 3


def test_labels_with_few_values_have_series_from_the_start() -> None:
    """Or `increase` would leave out what is counted before the first scrape."""
    port = StatusServer("127.0.0.1", 0, lambda: None, "images").start()
    page = http_get(port, "/metrics")[1]
    for verdict in DeliveryVerdict:
        label = f'{{fleet="images",result="{verdict}"}}'
        assert f"imagefleet_callback_tries_total{label}" in page


def test_single_metrics_can_be_asked_for() -> None:
    port = StatusServer("127.0.0.1", 0, lambda: None, "images").start()
    page = http_get(port, "/metrics?name[]=imagefleet_ready")[1]
    assert page.splitlines()[-1].startswith('imagefleet_ready{fleet="images"} ')
    assert "imagefleet_images_total" not in page


def test_a_port_in_use_is_a_wrong_setting() -> None:
    port = StatusServer("127.0.0.1", 0, lambda: None, "images").start()
    with pytest.raises(ConfigurationError, match=f"IMAGEFLEET_METRICS_PORT={port}: .* in use"):
        StatusServer("127.0.0.1", port, lambda: None, "images").start()


def test_a_host_that_is_not_ours_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1"):
        StatusServer("192.0.2.1", 0, lambda: None, "images").start()


def test_a_silent_client_does_not_block_the_others() -> None:
    port = StatusServer("127.0.0.1", 0, lambda: None, "images").start()
    with socket.create_connection(("127.0.0.1", port)):
        assert http_get(port, "/healthz") == (200, "ok\n")


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_ipv6_is_served() -> None:
    port = StatusServer("::1", 0, lambda: None, "images").start()
    with urllib.request.urlopen(f"http://[::1]:{port}/healthz", timeout=60) as answer:
        assert answer.read() == b"ok\n"


def test_total_sums_a_metric_over_its_labels() -> None:
    metrics.SLOTS.labels("row").inc(2)
    metrics.SLOTS.labels("padding").inc(1)
    row = metrics.total(metrics.SLOTS, use="row")
    assert row >= 2
    assert metrics.total(metrics.SLOTS) >= row + metrics.total(metrics.SLOTS, use="padding")


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_gets_assignments(abstract: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,  # an address has at most 107 bytes
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
    ):
        name = "\0imagefleet-" + Path(folder).name if abstract else f"{folder}/notify"
        systemd.bind(name)
        monkeypatch.setenv("NOTIFY_SOCKET", name.replace("\0", "@"))
        notify_systemd("READY=1", "WATCHDOG=1")
        assert systemd.recv(100) == b"READY=1\nWATCHDOG=1"


def test_a_systemd_that_reads_nothing_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        systemd.bind(f"{folder}/notify")
        sender.connect(f"{folder}/notify")
        sender.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                sender.send(b"WATCHDOG=1")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{folder}/notify")
        notify_systemd("WATCHDOG=1")
    assert "systemd cannot be notified: timed out" in caplog.text


def test_nothing_is_sent_outside_of_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_systemd("READY=1")
