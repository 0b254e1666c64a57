"""Every program in `examples/` runs as it is against a real worker with the fake model."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefleet.shared.redis_client.connection import celery_url
from imagefleet.shared.webhooks.signature import new_secret
from tests.support.fleet import run_python, running_fleet
from tests.support.processes import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as environment:
        yield environment


def _run(environment: dict[str, str], folder: Path, name: str, *arguments: str) -> str:
    done = run_python([str(EXAMPLES / name), *arguments], environment, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_submit_and_wait_prints_the_address_of_the_image(
    environment: dict[str, str], tmp_path: Path
) -> None:
    printed = _run(environment, tmp_path, "submit_and_wait.py")
    assert re.fullmatch(r"\w+: 64x64 png, seed 7, file://\S+/0\.png\n", printed)


def test_async_submit_prints_every_job(environment: dict[str, str], tmp_path: Path) -> None:
    printed = _run(environment, tmp_path, "async_submit.py")
    assert sorted(printed.splitlines()) == [
        "a blue star: succeeded",
        "a green ring: succeeded",
        "a red circle: succeeded",
    ]


def test_callbacks_prints_the_verified_event(environment: dict[str, str], tmp_path: Path) -> None:
    printed = _run(environment, tmp_path, "callbacks.py")
    assert re.fullmatch(r"job\.succeeded: file://\S+/0\.png\n", printed)


def test_callbacks_without_a_secret_says_what_to_set(
    environment: dict[str, str], tmp_path: Path
) -> None:
    environment = {"IMAGEFLEET_REDIS_URL": environment["IMAGEFLEET_REDIS_URL"]}
    done = run_python([str(EXAMPLES / "callbacks.py")], environment, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("set IMAGEFLEET_WEBHOOK_SECRETS")


def test_callbacks_with_another_secret_says_what_differs(
    environment: dict[str, str], tmp_path: Path
) -> None:
    environment = {**environment, "IMAGEFLEET_WEBHOOK_SECRETS": new_secret()}
    done = run_python([str(EXAMPLES / "callbacks.py")], environment, tmp_path)
    assert done.returncode == 1
    assert "IMAGEFLEET_WEBHOOK_SECRETS differs from that of the workers" in done.stderr
    assert "Traceback" not in done.stderr


def test_dataset_is_made_verified_and_found_finished_when_repeated(
    environment: dict[str, str], tmp_path: Path
) -> None:
    for _ in range(2):
        printed = _run(environment, tmp_path, "dataset.py", str(tmp_path / "dataset"))
        assert printed == "succeeded: 12 of 12 images in 3 shards\n"
    assert len(list((tmp_path / "dataset").glob("*.tar"))) == 3


def test_the_celery_producer_never_imports_imagefleet(
    environment: dict[str, str], tmp_path: Path
) -> None:
    program = str(EXAMPLES / "celery_producer.py")
    url = celery_url(environment["IMAGEFLEET_REDIS_URL"])  # Celery does not know unix://
    environment = {"IMAGEFLEET_REDIS_URL": url}
    done = run_python(["-X", "importtime", program], environment, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"[\w-]+: file://\S+/0\.png\n", done.stdout)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "celery" in modules
    assert not [name for name in modules if name.partition(".")[0] == "imagefleet"]


def test_the_unit_test_example_passes_without_a_fleet(tmp_path: Path) -> None:
    program = str(EXAMPLES / "unit_test_with_fakeredis.py")
    done = run_python(["-m", "pytest", "-q", "-p", "no:cacheprovider", program], {}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_example_with_a_fake_fleet_passes_without_a_fleet(tmp_path: Path) -> None:
    program = str(EXAMPLES / "unit_test_with_fake_fleet.py")
    done = run_python(["-m", "pytest", "-q", "-p", "no:cacheprovider", program], {}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_every_example_has_a_test() -> None:
    tests = Path(__file__).read_text()
    assert all(f'"{program.name}"' in tests for program in EXAMPLES.glob("*.py"))
