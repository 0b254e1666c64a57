"""Secrets in settings reach no output of a worker, no error sentence and no remote control."""

import json
from pathlib import Path

import pytest
from celery import Celery
from click.testing import CliRunner

from imagefleet.producer.commands.cli import main
from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.redis_client.connection import celery_url, transport_options
from imagefleet.shared.storage import open_store
from imagefleet.worker.celery_app.masked_stats import mask_secrets
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.settings.worker_settings import WorkerSettings
from tests.support.processes import StartWorker, until
from tests.support.redis import SentinelPair, TcpServer

SECRET = "hunter2"


def _celery(url: str, namespace: str = "imagefleet") -> Celery:
    address, options = celery_url(url), transport_options(url)
    app = Celery(broker=address, backend=address, set_as_current=False)
    app.conf.broker_transport_options = options
    app.conf.control_exchange = namespace
    app.conf.result_backend_transport_options = options
    return app


def _inspect(url: str, namespace: str) -> str:
    """Return what Celery's remote control tells about the workers: statistics, settings, report."""
    answers = []
    with _celery(url, namespace) as app:
        for command in ("stats", "conf", "report"):
            ask = getattr(app.control.inspect(timeout=5, limit=1), command)
            answers.append(json.dumps(until(ask), default=str))
    return "\n".join(answers)


def test_the_password_of_redis_is_shown_nowhere(
    start: StartWorker, tmp_path: Path, namespace: str
) -> None:
    with TcpServer(tmp_path / "redis", "--requirepass", f"a?#@/{SECRET}") as server:
        url = f"redis://:a%3F%23%40%2F{SECRET}@127.0.0.1:{server.port}/0"
        worker = start(IMAGEFLEET_REDIS_URL=url)
        worker.await_log("ready after")
        worker.await_log("Connected to")
        told = _inspect(url, namespace)
        worker.terminate()
    assert f'"port": {server.port}' in told
    assert SECRET not in told
    assert SECRET not in worker.output()
    assert "transport:   redis://:**@" in worker.output()


def test_the_password_of_sentinels_is_shown_nowhere(
    start: StartWorker, tmp_path: Path, namespace: str
) -> None:
    with SentinelPair(tmp_path / "pair", password=SECRET) as pair:
        worker = start(IMAGEFLEET_REDIS_URL=pair.url)
        worker.await_log("ready after")
        worker.await_log("Connected to")
        told = _inspect(pair.url, namespace)
        worker.terminate()
    assert "sentinel_kwargs" in told
    assert SECRET not in told
    assert SECRET not in worker.output()


@pytest.mark.parametrize(
    "url",
    [
        f"sentinel://user:{SECRET}@a:1,b:2/service?sentinel_password={SECRET}",
        f"unix://user:{SECRET}@/run/redis.sock",
        f"unix:///run/redis.sock?password={SECRET}",
        f"rediss://:{SECRET}@host/0",
    ],
)
def test_the_statistics_of_a_connection_hold_no_secret(url: str) -> None:
    with _celery(url) as app:
        info = app.connection_for_read().info()
        info.pop("password")  # as Celery does
        masked = json.dumps(mask_secrets(info))
    assert SECRET not in masked
    assert mask_secrets({"port": 1, "alternates": [], "password": None}) == {
        "port": 1,
        "alternates": [],
        "password": None,
    }


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("REDIS_URL", f"redis://:a?{SECRET}@127.0.0.1:1/0", "write %23 for #, %3F for ?"),
        ("REDIS_URL", f"redis://:1?{SECRET}@127.0.0.1:1/0", "write %23 for #, %3F for ?"),
        ("REDIS_URL", f"redis://u:1#{SECRET}@127.0.0.1:1/0", "write %23 for #, %3F for ?"),
        ("REDIS_URL", f"redis://:a[{SECRET}]b@127.0.0.1:1/0", "write %23 for #, %3F for ?"),
        ("REDIS_URL", f"redis://:1/{SECRET}@127.0.0.1:1/0", "the number of a database"),
        ("REDIS_URL", f"sentinel://:a?{SECRET}@h:1/x", "write %23 for #, %3F for ?"),
        ("STORAGE_URL", f"s3://b?endpoint_url=http://key:{SECRET}@h:1", "set AWS_ACCESS_KEY_ID"),
        ("STORAGE_URL", f"s3://b?endpoint_url=http://key:a {SECRET}%40h", "AWS_ACCESS_KEY_ID"),
        ("STORAGE_URL", f"s3://key:a/{SECRET}@b", "set AWS_ACCESS_KEY_ID"),
        ("PROGRAMS_URL", f"s3://b?endpoint_url=http://key:{SECRET}@h:1", "set AWS_ACCESS_KEY_ID"),
        ("PREEMPTION_URL", f"http://key:{SECRET}@h/x", "without user, query or fragment"),
        ("BULK_ALLOW", f"http://key:{SECRET}@h:1", "must be http(s)://host[:port]"),
    ],
)
def test_a_worker_refuses_an_address_with_credentials_without_showing_them(
    start: StartWorker, name: str, value: str, sentence: str
) -> None:
    worker = start(**{f"IMAGEFLEET_{name}": value})
    assert worker.wait() == ExitCode.CONFIG, worker.output()
    assert sentence in worker.output()
    assert SECRET not in worker.output()


def test_a_worker_that_does_not_reach_redis_shows_no_credentials(start: StartWorker) -> None:
    worker = start(IMAGEFLEET_REDIS_URL=f"redis://:{SECRET}@127.0.0.1:1/0")
    assert worker.wait() == ExitCode.TEMPFAIL, worker.output()
    assert "Redis at 127.0.0.1:1/0" in worker.output()
    assert SECRET not in worker.output()


@pytest.mark.parametrize(
    "url", [f"redis://:a?{SECRET}@h/0", f"redis://:1#{SECRET}@h/0", f"gopher://a:{SECRET}@h"]
)
def test_a_command_refuses_a_wrong_address_of_redis_without_showing_it(url: str) -> None:
    result = CliRunner().invoke(main, ["status", "cat-1", "--redis-url", url])
    assert result.exit_code == 1
    assert SECRET not in result.output


def test_settings_and_stores_show_no_credentials() -> None:
    with pytest.raises(ConfigurationError) as refused:
        WorkerSettings.load(storage_url=f"s3://b?endpoint_url=http://key:a {SECRET}@h")
    assert "storage_url='s3://***@h'" in str(refused.value)
    for url in (f"s3://b?endpoint_url=http://k:{SECRET}@h", f"s4://k:{SECRET} x@h"):
        with pytest.raises(ConfigurationError) as refused:
            open_store(url)
        assert SECRET not in str(refused.value)
    store = open_store("s3://b/p?endpoint_url=http://h&region=x")
    assert store.url == "s3://b/p/"
    settings = WorkerSettings.load(redis_url=f"redis://:{SECRET}@h/0", programs_secret=SECRET)
    assert SECRET not in repr(settings) + str(settings) + repr(store)
