"""docker-compose.yml and the Dockerfile name existing things. `make lint` checks their form."""

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from imagefleet.producer.commands.serve import serve
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.shared.settings.settings import ENV_PREFIX
from imagefleet.worker.settings.worker_settings import WorkerSettings

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]


def test_every_variable_is_a_setting() -> None:
    fields = {*WorkerSettings.model_fields, *GatewaySettings.model_fields}
    known = {ENV_PREFIX + name.upper() for name in fields}
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
    assert len(installs) == 4
    assert all("--require-hashes" in each or "--no-deps" in each for each in installs)
    for name in ("worker", "tpu", "cuda12", "http", "build"):
        pins = _pins(name)
        assert pins
        assert all("--hash=sha256:" in pin for pin in pins.values())


@pytest.mark.parametrize(
    ("name", "runtime"), [("tpu", "libtpu=="), ("cuda12", "jax-cuda12-plugin==0.10.2")]
)
def test_a_worker_on_accelerators_has_the_packages_of_every_worker_and_the_runtime(
    name: str, runtime: str
) -> None:
    worker, accelerated = _pins("worker"), _pins(name)
    assert worker.items() <= accelerated.items()
    assert any(each.startswith(runtime) for each in accelerated)


@pytest.mark.parametrize(
    ("setting", "package"),
    [("gs:// addresses", "google-cloud-storage"), ("IMAGEFLEET_TRACES", "opentelemetry-sdk")],
)
def test_a_worker_of_the_image_has_the_packages_of_its_settings(setting: str, package: str) -> None:
    for name in ("worker", "tpu", "cuda12"):
        assert any(each.startswith(f"{package}==") for each in _pins(name)), setting


def test_the_packages_of_a_gateway_are_those_of_a_worker_and_more() -> None:
    gateway = _pins("http")
    assert any(each.startswith("fastapi==") for each in gateway)
    worker = dict(each.partition(" ")[0].split("==") for each in _pins("worker"))
    both = [each.partition(" ")[0].split("==") for each in gateway]
    assert len([name for name, _ in both if name in worker]) > 10
    assert all(version == worker.get(name, version) for name, version in both)


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
    assert SERVICES["worker"]["environment"]["IMAGEFLEET_STOP_TIMEOUT_S"] == str(grace_s)


def test_every_path_that_the_image_copies_exists() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    text = text.replace("\\\n", " ")
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sources = [
        source
        for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert len(sources) > 10
    assert all((ROOT / source).exists() for source in sources)
    assert "*" in ignored  # nothing is sent to the builder but what is named
    allowed = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert [each for each in sources if not any(fnmatch(each, one) for one in allowed)] == []


def test_the_caches_of_a_worker_are_volumes_on_folders_of_the_image() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    folders = dict(re.findall(r"(IMAGEFLEET_CACHE_DIR|HF_HOME)=(\S+)", text))
    mounts = [volume.partition(":")[2] for volume in SERVICES["worker"]["volumes"]]
    assert sorted(mounts) == sorted(folders.values())
    assert all(f'"${name}"' in text.partition("RUN mkdir")[2] for name in folders)


def test_the_health_of_a_worker_is_that_it_takes_work() -> None:
    port = SERVICES["worker"]["environment"]["IMAGEFLEET_METRICS_PORT"]
    *_, program = SERVICES["worker"]["healthcheck"]["test"]
    assert f":{port}/readyz" in program
    compile(program, "healthcheck", "exec")


def test_the_gateway_serves_on_this_machine_only_and_has_time_to_end() -> None:
    gateway = SERVICES["gateway"]
    assert all(port.startswith("127.0.0.1:") for port in gateway["ports"])
    arguments = serve.make_context("serve", gateway["command"][1:]).params
    *_, program = gateway["healthcheck"]["test"]
    assert f":{arguments['port']}/readyz" in program
    compile(program, "healthcheck", "exec")
    assert int(gateway["stop_grace_period"].removesuffix("s")) > 3


def test_the_file_for_gpus_changes_services_that_exist() -> None:
    override = YAML(typ="safe").load(ROOT / "deploy/compose-gpu.yml")["services"]
    assert override.keys() <= SERVICES.keys()
    arguments = {name for each in override.values() for name in each["build"]["args"]}
    assert arguments == {"CUDA"}
    assert "ARG CUDA" in (ROOT / "deploy/Dockerfile").read_text()
