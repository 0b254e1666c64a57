"""docker-compose.yml and the Dockerfile name existing things. `make lint` checks their form."""

import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from imagefleet.shared.settings import ENV_PREFIX
from imagefleet.worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]


def test_every_variable_is_a_setting() -> None:
    known = {ENV_PREFIX + name.upper() for name in WorkerSettings.model_fields}
    for service in SERVICES.values():
        ours = {name for name in service.get("environment", {}) if name.startswith(ENV_PREFIX)}
        assert ours <= known


def test_every_foreign_image_is_pinned() -> None:
    images = [service["image"] for service in SERVICES.values() if "build" not in service]
    assert images
    assert all(re.search(r":\d+\.\d+", image) for image in images)


def test_the_image_installs_only_packages_pinned_by_hash() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install [^&\n]*", text)
    assert len(installs) == 3
    assert all("--require-hashes" in each or "--no-deps" in each for each in installs)
    for name in ("worker", "tpu", "build"):
        pins = _pins(name)
        assert pins
        assert all("--hash=sha256:" in pin for pin in pins.values())


def test_a_worker_on_tpus_has_the_packages_of_every_worker_and_the_runtime() -> None:
    worker, tpu = _pins("worker"), _pins("tpu")
    assert worker.items() <= tpu.items()
    assert any(name.startswith("libtpu==") for name in tpu)


def _pins(name: str) -> dict[str, str]:
    """Return the hashes in a file of requirements, by package, version and marker."""
    lines = (ROOT / f"requirements/{name}.txt").read_text().replace("\\\n", " ").splitlines()
    assert not any("://" in line or line.startswith("-") for line in lines)
    return {pin.strip(): hashes for pin, _, hashes in (line.partition("  ") for line in lines)}


def test_redis_persists_every_acknowledged_write() -> None:
    command = SERVICES["redis"]["command"]
    assert "--appendfsync always" in command
    assert "--maxmemory-policy noeviction" in command


def test_the_grace_period_is_longer_than_the_drain_time() -> None:
    grace_s = int(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > WorkerSettings.model_fields["drain_s"].default


def test_every_path_that_the_image_copies_exists() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE):
        assert all((ROOT / source).exists() for source in line.split()[:-1])
