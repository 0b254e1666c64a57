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
