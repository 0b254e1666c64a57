"""A worker that cannot start says why in one sentence, ends with a code and claims no job."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagefleet import Client
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.process.exit_codes import ExitCode
from tests.support.hanging import HangingServer
from tests.support.processes import Worker, until, worker_processes
from tests.support.redis import RedisProxy, TcpServer
from tests.support.settings import worker_settings

StartWorker = Callable[..., Worker]


@pytest.fixture
def start(redis_server: LocalRedisServer, namespace: str, tmp_path: Path) -> Iterator[StartWorker]:
    def start(**settings: str) -> Worker:
        return start_worker(
            **{f"IMAGEFLEET_{name.upper()}": value for name, value in settings.items()}
        )

    environment = worker_settings(
        redis_server.url,
        tmp_path,
        IMAGEFLEET_NAMESPACE=namespace,
        IMAGEFLEET_MODEL="fake",
        IMAGEFLEET_CACHE_DIR=str(tmp_path / "cache"),
        AWS_ACCESS_KEY_ID="somebody",
        AWS_SECRET_ACCESS_KEY="something",
    )
    with worker_processes(tmp_path, environment) as start_worker:
        yield start


def _make_damaged_checkpoint(folder: Path) -> str:
    """Make a checkpoint folder whose weights are truncated, and return its path."""
    (folder / "unet").mkdir(parents=True)
    (folder / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    (folder / "unet" / "config.json").write_text('{"_class_name": "UNet2DConditionModel"}')
    (folder / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"\x10")
    return str(folder)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"redis_url": "http://localhost"}, "IMAGEFLEET_REDIS_URL"),
        ({"storage_url": "ftp://example.org"}, "IMAGEFLEET_STORAGE_URL"),
        ({"storage_url": "file:///dev/null/images"}, "there is a file where a folder is needed"),
        ({"model": "/no/such/folder"}, "/no/such/folder"),
        ({"model": "DAMAGED"}, "imagefleet-worker: "),
        ({"lease_s": "soon"}, "IMAGEFLEET_LEASE_S"),
        ({"shapes": "64by64"}, "64by64"),
        ({"webhook_secrets": "not-a-secret"}, "IMAGEFLEET_WEBHOOK_SECRETS"),
    ],
)
def test_a_wrong_setting_ends_the_start_with_one_sentence_and_a_non_zero_code(
    start: StartWorker, tmp_path: Path, settings: dict[str, str], sentence: str
) -> None:
    if settings.get("model") == "DAMAGED":
        settings = {"model": _make_damaged_checkpoint(tmp_path / "damaged")}
    worker = start(**settings)
    assert worker.wait() == ExitCode.CONFIG
    _check_sentence(worker, sentence)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"redis_url": "redis://:secret@localhost:1/0"}, "Redis at localhost:1/0 does not answer"),
        (
            {"storage_url": "file:///proc/imagefleet", "storage_retry_s": "1"},
            "IMAGEFLEET_STORAGE_URL: cannot store /proc",
        ),
        (
            {"storage_url": "s3://bucket?endpoint_url=http://127.0.0.1:1", "storage_retry_s": "1"},
            "127.0.0.1:1",
        ),
    ],
)
def test_what_cannot_be_reached_at_the_start_is_a_temporary_failure(
    start: StartWorker, settings: dict[str, str], sentence: str
) -> None:
    worker = start(**settings)
    assert worker.wait() == ExitCode.TEMPFAIL
    _check_sentence(worker, sentence)


def test_a_hub_that_cannot_be_reached_is_a_temporary_failure(
    start: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    worker = start(model="someone/something")
    assert worker.wait() == ExitCode.TEMPFAIL
    _check_sentence(worker, "could not be downloaded from the Hub")


def test_a_wrong_password_is_a_wrong_setting(start: StartWorker, tmp_path: Path) -> None:
    with TcpServer(tmp_path / "guarded", "--requirepass", "right") as server:
        worker = start(redis_url=f"redis://:secret@127.0.0.1:{server.port}/0")
        assert worker.wait() == ExitCode.CONFIG
    _check_sentence(worker, "refuses the credentials")


def _check_sentence(worker: Worker, sentence: str) -> None:
    lines = [line for line in worker.output().splitlines() if line.startswith("imagefleet-worker:")]
    assert len(lines) == 1
    assert sentence in lines[0]
    assert "Traceback" not in worker.output()
    assert "secret@" not in worker.output()


@pytest.mark.parametrize(
    "settings",
    [
        {"mesh": "model=2"},
        {"shapes": "64by64"},
        {"storage_url": "ftp://example.org"},
        {"programs_url": "ftp://example.org"},
        {"preemption_url": "https://example.org"},
        {"model": "shapes", "shapes": "65x64"},
        {"model": "shapes", "scheduler": "ddpm"},
        {"model": "fake:speed=9"},
    ],
)
def test_settings_that_need_no_connection_are_refused_before_celery_starts(
    start: StartWorker, settings: dict[str, str]
) -> None:
    worker = start(**settings)
    assert worker.wait() == ExitCode.CONFIG
    [line] = worker.output().splitlines()
    assert line.startswith("imagefleet-worker: IMAGEFLEET_")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP])
def test_a_worker_that_is_stopped_while_it_starts_ends_at_once_with_success(
    start: StartWorker, number: signal.Signals
) -> None:
    with HangingServer("127.0.0.1") as server:
        worker = start(redis_url=f"redis://127.0.0.1:{server.port}/0")
        until(server.connections)
        worker.process.send_signal(number)
        assert worker.wait() == 0
    assert "stopped before it was ready; nothing was claimed" in worker.output()


def test_a_worker_that_is_stopped_while_it_reads_its_model_ends_with_success(
    start: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    with HangingServer("127.0.0.1") as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.port}")
        worker = start(model="someone/something")
        until(server.connections)
        assert worker.terminate() == 0
    assert "stopped before it was ready; nothing was claimed" in worker.output()


def test_a_misspelled_variable_causes_a_warning(start: StartWorker) -> None:
    worker = start(storage_ulr="file:///elsewhere", redis_url="redis://localhost:1/0")
    assert worker.wait() == ExitCode.TEMPFAIL
    warning = (
        "warning: IMAGEFLEET_STORAGE_ULR is not a setting; did you mean IMAGEFLEET_STORAGE_URL?"
    )
    assert f"imagefleet-worker: {warning}" in worker.output().splitlines()


def test_a_worker_that_cannot_start_claims_no_job(
    start: StartWorker, redis_server: LocalRedisServer, namespace: str
) -> None:
    job = Client(redis_server.url, namespace=namespace).submit("a")
    assert start(model="/no/such/folder").wait() == ExitCode.CONFIG
    assert job.status().state is State.QUEUED


def test_a_worker_starts_although_its_first_connections_to_redis_are_lost(
    start: StartWorker, redis_server: LocalRedisServer, namespace: str
) -> None:
    proxy = RedisProxy(redis_server.url.removeprefix("unix://"), dropped=2)
    start(redis_url=f"redis://127.0.0.1:{proxy.port}").await_log("ready after")
    job = Client(redis_server.url, namespace=namespace).submit("a")
    assert job.result(timeout=900).images
    proxy.close()
