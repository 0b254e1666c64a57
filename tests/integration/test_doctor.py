"""`imagefleet-worker doctor` on hosts with and without faults."""

import os
import re
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner, Result

from imagefleet.worker.cli import main
from imagefleet.worker.process.exit_codes import ExitCode


@pytest.fixture
def environment(settings: dict[str, str]) -> dict[str, str | None]:
    without: dict[str, str | None] = dict.fromkeys(
        name for name in os.environ if name.startswith("IMAGEFLEET_")
    )
    return {
        **without,
        **settings,
        "IMAGEFLEET_WEBHOOK_SECRETS": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    }


def _doctor(environment: Mapping[str, str | None], *flags: str) -> Result:
    return CliRunner(env=environment).invoke(main, ["doctor", *flags])


def _verdicts(result: Result) -> dict[str, str]:
    """Return the last verdict of each check."""
    return {name: verdict for verdict, name in re.findall(r"^(\w+) +(\w+)", result.output, re.M)}


def test_a_healthy_host_passes(environment: dict[str, str | None], tmp_path: Path) -> None:
    result = _doctor(environment, "--metrics-port", "0")
    assert result.exit_code == 0, result.output
    assert _verdicts(result) == {
        "settings": "ok",
        "redis": "ok",
        "storage": "ok",
        "model": "warn",
        "metrics": "ok",
        "notice": "ok",
        "callbacks": "ok",
    }
    assert "append-only file, appendfsync" in result.output
    assert list((tmp_path / "store").glob("check-*")) == []


@pytest.mark.parametrize(
    ("name", "value", "check", "sentence"),
    [
        ("REDIS_URL", "redis://:secret@localhost:1/0", "redis", "localhost:1/0 does not answer"),
        ("STORAGE_URL", "file:///proc/nowhere", "storage", "cannot store /proc/nowhere"),
        ("MODEL", "/no/such/folder", "model", "is not a folder"),
        ("METRICS_HOST", "192.0.2.1", "metrics", "cannot listen on 192.0.2.1"),
        ("LEASE_S", "soon", "settings", "IMAGEFLEET_LEASE_S"),
    ],
)
def test_each_fault_is_named(
    environment: dict[str, str | None], name: str, value: str, check: str, sentence: str
) -> None:
    faulty = {**environment, "IMAGEFLEET_METRICS_PORT": "0", f"IMAGEFLEET_{name}": value}
    result = _doctor(faulty)
    assert result.exit_code == ExitCode.CONFIG
    assert _verdicts(result)[check] == "FAIL"
    assert sentence in result.output
    assert "secret@" not in result.output
    assert "Traceback" not in result.output


def test_a_misspelt_variable_is_a_warning(environment: dict[str, str | None]) -> None:
    result = _doctor({**environment, "IMAGEFLEET_STORAGE_ULR": "x"})
    assert result.exit_code == 0
    assert "did you mean IMAGEFLEET_STORAGE_URL?" in result.output


class _Metadata(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("ETag", "1")
        self.end_headers()
        self.wfile.write(b"FALSE")


def test_the_metadata_server_is_asked(environment: dict[str, str | None]) -> None:
    with HTTPServer(("127.0.0.1", 0), _Metadata) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/preempted"
        result = _doctor({**environment, "IMAGEFLEET_PREEMPTION_URL": url})
        server.shutdown()
    assert f"{url} answers FALSE" in result.output
    result = _doctor({**environment, "IMAGEFLEET_PREEMPTION_URL": url})
    assert _verdicts(result)["notice"] == "warn"
    assert "does not answer" in result.output
