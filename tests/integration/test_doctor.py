"""`imagefleet-worker doctor` and `imagefleet doctor` on hosts with and without faults."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import redis
from click.testing import CliRunner

from imagefleet import Client
from imagefleet.producer.commands.cli import main
from imagefleet.shared.errors import StorageDenied
from imagefleet.shared.jobs.worker_status import Member, WorkerState, WorkerStatus
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.queues.lease import Lease
from tests.support.processes import ROOT, StartWorker, until
from tests.support.redis import TcpServer
from tests.support.settings import other_variables

Result = subprocess.CompletedProcess[str]


@pytest.fixture
def environment(settings: dict[str, str]) -> dict[str, str]:
    return {
        **settings,
        "IMAGEFLEET_WEBHOOK_SECRETS": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    }


def _doctor(environment: Mapping[str, str], *flags: str, command: Sequence[str] = ()) -> Result:
    """Run the doctor in its own process, because it may start JAX. `command` may run it."""
    return subprocess.run(
        [*command, sys.executable, "-m", "imagefleet.worker", "doctor", *flags],
        cwd=ROOT,
        env={**other_variables(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _verdicts(result: Result) -> dict[str, str]:
    """Return the last verdict of each check."""
    return {name: verdict for verdict, name in re.findall(r"^(\w+) +(\w+)", result.stdout, re.M)}


def test_a_healthy_host_passes(environment: dict[str, str], tmp_path: Path) -> None:
    result = _doctor(environment, "--metrics-port", "0")
    assert result.returncode == 0, result.stdout
    assert _verdicts(result) == {
        "settings": "ok",
        "redis": "ok",
        "storage": "ok",
        "model": "warn",
        "fleet": "ok",
        "host": "ok",
        "datasets": "ok",
        "cache": "ok",
        "metrics": "ok",
        "notice": "ok",
        "callbacks": "ok",
    }
    assert "append-only file, appendfsync" in result.stdout
    assert "signed with 1 secret\n" in result.stdout
    assert list((tmp_path / "store").glob("check-*")) == []


@pytest.mark.parametrize(
    ("name", "value", "check", "sentence"),
    [
        ("REDIS_URL", "redis://:secret@localhost:1/0", "redis", "localhost:1/0 does not answer"),
        ("STORAGE_URL", "file:///proc/nowhere", "storage", "cannot store /proc/nowhere"),
        ("MODEL", "/no/such/folder", "model", "is not a folder"),
        ("METRICS_HOST", "192.0.2.1", "metrics", "cannot listen on 192.0.2.1"),
        ("LEASE_S", "soon", "settings", "IMAGEFLEET_LEASE_S"),
        ("MODEL", "fake:speed=9", "model", "IMAGEFLEET_MODEL='fake:speed=9': "),
    ],
)
def test_each_fault_is_named(
    environment: dict[str, str], name: str, value: str, check: str, sentence: str
) -> None:
    faulty = {**environment, "IMAGEFLEET_METRICS_PORT": "0", f"IMAGEFLEET_{name}": value}
    result = _doctor(faulty)
    assert result.returncode == ExitCode.CONFIG
    assert _verdicts(result)[check] == "FAIL"
    assert sentence in result.stdout
    assert "secret@" not in result.stdout
    assert "Traceback" not in result.stdout


def test_a_redis_that_is_almost_full_is_a_warning(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with TcpServer(tmp_path / "full", "--maxmemory-policy", "noeviction") as server:
        client = server.client()
        client.set("filling", b"x" * 2**20)
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", round(used / 0.9))
        url = f"redis://127.0.0.1:{server.port}/0"
        result = _doctor({**environment, "IMAGEFLEET_REDIS_URL": url})
    assert result.returncode == 0, result.stdout
    assert re.search(r"^warn  redis .* MiB of maxmemory .* MiB used; a full", result.stdout, re.M)


def test_limits_that_are_too_small_are_named(environment: dict[str, str], tmp_path: Path) -> None:
    small = {
        "IMAGEFLEET_MODEL": "fake:capacity=64",
        "IMAGEFLEET_POST_THREADS": "4",
        "IMAGEFLEET_CALLBACK_ALLOW": "0.0.0.0/0",
        "IMAGEFLEET_DRAIN_S": "300",
        "IMAGEFLEET_STOP_TIMEOUT_S": "45",
    }
    with TcpServer(tmp_path / "small", "--maxclients", "12", "--appendonly", "yes") as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        result = _doctor(
            {**environment, **small, "IMAGEFLEET_REDIS_URL": url},
            command=("sh", "-c", 'ulimit -n 60; exec "$@"', "sh"),
        )
    assert result.returncode == ExitCode.CONFIG
    for line in (
        "FAIL  redis .* maxclients 12, and 1 worker ",
        "FAIL  host .* 60 files may be open ",
        "FAIL  host .*DRAIN_S=300, .*STOP_TIMEOUT_S=45.0: the platform kills the worker first",
        "warn  devices .*POST_THREADS=4, and a full batch has 64 images",
        "warn  callbacks .*CALLBACK_ALLOW holds 0.0.0.0/0",
    ):
        assert re.search(f"^{line}", result.stdout, re.M), result.stdout


def test_a_replica_of_redis_is_a_failure(environment: dict[str, str], tmp_path: Path) -> None:
    with (
        TcpServer(tmp_path / "master") as master,
        TcpServer(tmp_path / "replica", "--replicaof", f"127.0.0.1 {master.port}") as replica,
    ):
        until(lambda: replica.client().info("replication")["master_link_status"] == "up")
        url = f"redis://127.0.0.1:{replica.port}/0"
        result = _doctor({**environment, "IMAGEFLEET_REDIS_URL": url})
    assert result.returncode == ExitCode.CONFIG
    assert re.search("^FAIL  redis .* is a read-only replica, which", result.stdout, re.M)


def test_a_misspelt_variable_is_a_warning(environment: dict[str, str]) -> None:
    result = _doctor({**environment, "IMAGEFLEET_STORAGE_ULR": "x"})
    assert result.returncode == 0
    assert "did you mean IMAGEFLEET_STORAGE_URL?" in result.stdout


@pytest.mark.parametrize(
    ("flags", "check", "sentence"),
    [
        (["--shapes", "65x64"], "model", "--shapes: 65x64: height and width must be multiples of"),
        (["--scheduler", "ddpm"], "model", "--scheduler='ddpm' cannot run this model; choose ddim"),
        (["--textual-inversion", "a=/no"], "model", "textual inversion a: /no is not a file"),
        (["--devices", "2", "--job-lora", "a=/no"], "devices", "lora a: /no is not a file"),
        (["--mesh", "data=1,model=3"], "devices", "the host has 2 cpu devices"),
        (
            ["--devices", "2", "--shapes", "65536x65536"],
            "devices",
            "; try a smaller IMAGEFLEET_PER",
        ),
        (["--cache-dir", "/dev/null/a"], "cache", "--cache-dir=/dev/null/a cannot be created"),
        (["--programs-url", "memory://"], "storage", "needs IMAGEFLEET_PROGRAMS_SECRET"),
    ],
)
def test_what_a_start_would_refuse_is_found_without_a_weight(
    environment: dict[str, str], flags: list[str], check: str, sentence: str
) -> None:
    virtual = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    result = _doctor({**environment, "IMAGEFLEET_MODEL": "shapes", **virtual}, *flags)
    assert result.returncode == ExitCode.CONFIG, result.stdout
    assert re.search(rf"^FAIL  {check} .*{re.escape(sentence)}", result.stdout, re.M), result.stdout
    assert result.stdout.count("FAIL") == 1


def test_a_model_that_fits_the_devices_passes(environment: dict[str, str]) -> None:
    result = _doctor({**environment, "IMAGEFLEET_MODEL": "shapes"})
    assert result.returncode == 0, result.stdout
    assert "the model shapes: shapes 64x64, scheduler ddim, " in result.stdout
    assert "the model shapes fits: it needs about 0.02 GiB a device" in result.stdout


class _Metadata(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("ETag", "1")
        self.end_headers()
        self.wfile.write(b"FALSE")


def test_the_metadata_server_is_asked(environment: dict[str, str]) -> None:
    with HTTPServer(("127.0.0.1", 0), _Metadata) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/preempted"
        result = _doctor({**environment, "IMAGEFLEET_PREEMPTION_URL": url})
        server.shutdown()
    assert f"{url} answers FALSE" in result.stdout
    result = _doctor({**environment, "IMAGEFLEET_PREEMPTION_URL": url})
    assert _verdicts(result)["notice"] == "warn"
    assert "does not answer" in result.stdout


def test_a_producer_sees_its_workers_and_their_store(
    start: StartWorker, producer: Client, settings: dict[str, str], tmp_path: Path
) -> None:
    worker = start()
    ready = [WorkerState.READY]
    until(lambda: [each.state for each in producer.fleet.workers.statuses()] == ready)
    report = CliRunner().invoke(main, ["doctor"], env=settings)
    assert report.exit_code == 0, report.output
    assert re.search(r"^ok    redis  .* ms a command$", report.output, re.M)
    assert re.search(
        r"^ok    workers +1 ready worker for the model fake: shapes ", report.output, re.M
    )
    assert f"ok    storage    file://{tmp_path}/store/: 1 MB is written in " in report.output
    assert list((tmp_path / "store").glob("check-*")) == []
    worker.terminate()
    report = CliRunner().invoke(main, ["doctor"], env=settings)
    assert report.exit_code == 0, report.output
    assert "warn  workers    no worker is ready for the model fake; its jobs wait" in report.output


def test_a_host_without_pyarrow_is_told_what_it_cannot_write(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    result = _doctor({**environment, "PYTHONPATH": str(tmp_path)})
    assert result.returncode == 0, result.stdout
    assert re.search(r"^ok .*formats that can be written: webdataset, files$", result.stdout, re.M)
    assert re.search(r"^warn .*no dataset of format parquet.*\[dataset\]", result.stdout, re.M)


def _member(name: str, model: str, store: str) -> WorkerStatus:
    return WorkerStatus(
        worker=name,
        state=WorkerState.READY,
        model=model,
        shapes=("64x64",),
        member=Member(serves_default=True, digest="d", store=store),
    )


def test_both_see_hosts_that_differ(
    environment: dict[str, str], client: redis.Redis, namespace: str
) -> None:
    settings, store = environment, environment["IMAGEFLEET_STORAGE_URL"] + "/"
    for status in (
        _member("host-a:1:x", "fake", store),
        _member("host-b:1:x", "fake", store),
        _member("host-c:1:x", "other", "s3://elsewhere/"),
    ):
        Lease(client, namespace, status.worker, 60).acquire(status.dump())
    report = CliRunner().invoke(main, ["doctor"], env=settings)
    for sentence in (
        "model of jobs that name none of worker host-c:1:x is other, and that of 2 workers is fake",
        f"the store of worker host-c:1:x is s3://elsewhere/, and that of 2 workers is {store}",
        f"the workers of 2 hosts (host-a, host-b) store images in {store}",
    ):
        assert re.search(f"^warn  hosts .*{re.escape(sentence)}", report.output, re.M), (
            report.output
        )
    shown = CliRunner().invoke(main, ["fleet", "--json"], env=settings)
    assert [each["worker"] for each in json.loads(shown.output)["differences"]] == [
        "host-c:1:x"
    ] * 2
    result = _doctor(environment)
    assert result.returncode == ExitCode.CONFIG
    assert re.search(
        "^FAIL  fleet .*its model of jobs .* fake and that of worker host-c", result.stdout, re.M
    )
    assert re.search("^warn  fleet .*store images in ", result.stdout, re.M)


def test_a_producer_is_told_that_no_worker_was_ready_yet(settings: dict[str, str]) -> None:
    unset = {**settings, "IMAGEFLEET_STORAGE_URL": ""}
    report = CliRunner().invoke(main, ["doctor"], env=unset)
    assert report.exit_code == 0, report.output
    assert "warn  workers    no worker was ready yet; jobs wait until one is" in report.output
    assert "warn  storage    unknown until a worker was ready" in report.output


def test_a_producer_without_redis_gets_one_failure(settings: dict[str, str]) -> None:
    away = {**settings, "IMAGEFLEET_REDIS_URL": "redis://:secret@localhost:1/0"}
    report = CliRunner().invoke(main, ["doctor"], env=away)
    assert report.exit_code == 1
    assert report.output.count("FAIL") == 1
    assert "localhost:1/0 does not answer" in report.output
    assert "secret@" not in report.output


def test_a_producer_that_may_only_read_the_store_is_warned(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()

    def deny(*_: object) -> None:
        raise StorageDenied("AccessDenied")

    monkeypatch.setattr("imagefleet.shared.storage.folder.FolderStore.put", deny)
    report = CliRunner().invoke(main, ["doctor"], env=settings)
    assert report.exit_code == 0, report.output
    assert re.search(r"^warn  storage +can only be read.*: AccessDenied$", report.output, re.M)
