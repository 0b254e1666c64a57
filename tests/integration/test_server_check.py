"""A Redis that cannot hold a fleet is refused before the model is loaded, in one sentence."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from imagefleet import Client
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.server_check import check_server, find_fault, find_risks
from imagefleet.worker.process.exit_codes import ExitCode
from tests.support.fleet import run_python
from tests.support.ports import reserved_port
from tests.support.processes import ROOT, StartWorker, Worker
from tests.support.redis import TcpServer

NAMESPACE_KEYS = "~{0}:* ~{0}.* ~celery-task-meta-* ~_kombu.* ~unacked*"


def _refused(worker: Worker) -> str:
    """Return the sentence of a worker that ends before it is ready."""
    assert worker.wait() == ExitCode.CONFIG, worker.output()
    assert "Traceback" not in worker.output()
    [line] = [line for line in worker.output().splitlines() if line.startswith("imagefleet-worker")]
    return line


@pytest.fixture
def evicting(tmp_path: Path) -> Iterator[TcpServer]:
    options = ("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    with TcpServer(tmp_path / "evicting", *options) as server:
        yield server


def _url(server: TcpServer) -> str:
    return f"redis://127.0.0.1:{server.port}/0"


def test_a_redis_that_evicts_messages_is_refused(start: StartWorker, evicting: TcpServer) -> None:
    sentence = _refused(start(IMAGEFLEET_REDIS_URL=_url(evicting)))
    assert "evicts messages and records" in sentence
    assert "set maxmemory-policy to noeviction" in sentence


def test_a_producer_warns_once_of_a_redis_that_evicts_messages(
    evicting: TcpServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Client(_url(evicting), namespace=namespace) as producer:
        producer.submit("a")
        producer.submit("b")
    assert caplog.text.count("evicts messages and records when its memory is full") == 1
    assert caplog.text.count("no append-only file") == 1


def test_a_cluster_is_refused(start: StartWorker, tmp_path: Path) -> None:
    with reserved_port() as bus:  # the default is 10,000 above the port: taken, or above 65,535
        options = ("--cluster-enabled", "yes", "--cluster-port", str(bus))
        with TcpServer(tmp_path / "cluster", *options) as server:
            sentence = _refused(start(IMAGEFLEET_REDIS_URL=_url(server)))
    assert "is a cluster" in sentence


@pytest.mark.parametrize(
    "rights",
    [
        "+@all -@scripting &* ~*",
        "+@all -hincrby &* ~*",
        "+@all &* ~{0}:*",
        "+@all &* ~{0}:* ~{0}.*",
        "+@all &* ~{0}:* ~{0}.* ~celery-task-meta-*",
        f"+@all {NAMESPACE_KEYS}",
        f"+@all &celery-task-meta-* {NAMESPACE_KEYS}",
    ],
)
def test_a_user_with_too_few_rights_is_refused(
    start: StartWorker, tmp_path: Path, namespace: str, rights: str
) -> None:
    with TcpServer(tmp_path / "guarded") as server:
        words = rights.format(namespace).split()
        server.client().execute_command(
            "ACL", "SETUSER", "few", "on", ">pw", "resetchannels", *words
        )
        url = _url(server).replace("//", "//few:pw@")
        sentence = _refused(start(IMAGEFLEET_REDIS_URL=url))
    assert "does not give this user the rights of docs/redis.md" in sentence
    assert "pw@" not in sentence


def test_the_settings_of_the_guide_make_a_redis_without_a_warning(
    tmp_path: Path, namespace: str
) -> None:
    config = (ROOT / "deploy/redis/imagefleet.conf").read_text()
    with TcpServer(tmp_path / "guide", config=config) as server:
        client = connect(_url(server), retries=0)
        assert check_server(client, _url(server), namespace) == []
        for name, value in {"appendfsync": "always", "save": ""}.items():
            assert client.config_get(name) == {name: value}


def test_the_check_leaves_no_key_behind(tmp_path: Path, namespace: str) -> None:
    with TcpServer(tmp_path / "plain") as server:
        client = connect(_url(server), retries=0)
        [warning] = check_server(client, _url(server), namespace)
        assert "no append-only file" in warning
        assert not client.keys()


def _writes_outside_transactions(commands: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    in_transaction = False
    for command in commands:
        name = command["command"].split()[0]
        in_transaction = name == "MULTI" or (in_transaction and name != "EXEC")
        in_script = command["client_type"] == "lua"
        if name in ("SETEX", "SADD", "ZADD") and not in_transaction and not in_script:
            yield name


def test_a_check_that_is_killed_halfway_leaves_no_key_behind(
    tmp_path: Path, namespace: str
) -> None:
    with TcpServer(tmp_path / "plain") as server, server.client().monitor() as monitor:
        check_server(connect(_url(server), retries=0), _url(server), namespace)
        server.client().echo("the check is over")
        commands = list(takewhile(lambda each: "ECHO" not in each["command"], monitor.listen()))
    assert {"MULTI", "SETEX", "SADD", "ZADD"} <= {each["command"].split()[0] for each in commands}
    assert list(_writes_outside_transactions(commands)) == []


def test_a_user_who_may_not_ask_is_warned(tmp_path: Path, namespace: str) -> None:
    with TcpServer(tmp_path / "plain") as server:
        server.client().execute_command(
            "ACL", "SETUSER", "silent", "on", ">pw", "~*", "&*", "+@all", "-info"
        )
        url = _url(server).replace("//", "//silent:pw@")
        [warning] = check_server(connect(url, retries=0), url, namespace)
        assert "cannot check the settings of Redis" in warning


def test_a_redis_that_takes_no_writes_for_now_is_not_refused(
    tmp_path: Path, namespace: str
) -> None:
    with TcpServer(tmp_path / "plain", "--min-replicas-to-write", "1") as server:
        warnings = check_server(connect(_url(server), retries=0), _url(server), namespace)
        assert "cannot check the rights of this user now" in warnings[-1]


@pytest.mark.parametrize(
    ("info", "fault", "risk"),
    [
        ({}, None, None),
        ({"maxmemory_policy": "noeviction", "aof_enabled": 1}, None, None),
        ({"maxmemory_policy": "allkeys-lfu", "maxmemory": 0}, None, "once maxmemory is set"),
        ({"maxmemory_policy": "allkeys-lfu", "maxmemory": 1}, "evicts messages", None),
        ({"maxmemory_policy": "volatile-ttl", "maxmemory": 1}, None, "records of finished jobs"),
        ({"aof_enabled": 0, "connected_slaves": 0}, None, "no append-only file"),
        ({"aof_enabled": 0, "connected_slaves": 1}, None, None),
        ({"cluster_enabled": 1}, "is a cluster", None),
    ],
)
def test_faults_and_risks_of_a_redis(
    info: dict[str, Any], fault: str | None, risk: str | None
) -> None:
    assert (fault or "") in (find_fault(info) or "")
    assert bool(fault) == bool(find_fault(info))
    assert bool(risk) == bool(find_risks(info))
    assert (risk or "") in "".join(find_risks(info))


def test_an_error_that_ends_celery_ends_the_worker_with_a_code(settings: dict[str, str]) -> None:
    program = (
        "from celery.worker import WorkController as W\n"
        "W.start = lambda self: self.stop(exitcode=1)  # as Celery does at an unexpected error\n"
        "from imagefleet.worker.commands.cli import main\n"
        "main([])"
    )
    ended = run_python(["-c", program], settings, ROOT)
    assert ended.returncode == ExitCode.SOFTWARE, ended.stderr


def test_the_check_of_rights_calls_every_command_of_the_scripts() -> None:
    command = re.compile(r"redis\.call\(\s*'([A-Z]+)'")
    scripts = [path for package in ("shared", "worker") for path in (ROOT / package).rglob("*.lua")]
    used = {name for path in scripts for name in command.findall(path.read_text())}
    checked = command.findall((ROOT / "shared/redis_client/check_rights.lua").read_text())
    assert not used - set(checked)
