"""The examples of README and docs run as they are, against a real worker with the fake model."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click
import pytest

from imagefleet.producer.commands.cli import main
from imagefleet.shared.redis_client.connection import celery_url
from tests.support.fleet import run_python, running_fleet
from tests.support.gateway import GatewayProcess, start_gateway
from tests.support.processes import ROOT, worker_processes

_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRAMS: Final = frozenset({"bash", "python"})
_NO_PROGRAMS: Final = frozenset({"csv", "ini", "json", "nginx", "text", "yaml"})
"""What programs print or read."""

_LONG = "it runs until it is stopped, or for many minutes"
_CLOUD = (
    "it needs a Google Cloud project; tests/unit/test_gcloud_commands.py checks the commands, "
    "test_deploy_files.py and test_startup_script.py the files"
)
_CONTAINERS = "it needs a Docker daemon; tests/unit/test_compose.py checks the files"
_MODELS = "it needs a Stable Diffusion checkpoint of gigabytes"
_LORA = "it needs workers that hold LoRA; tests/integration/test_job_loras.py has some"
_CONTROL_NET = "it needs workers that hold ControlNets; test_control_parameters.py has such jobs"
_CLUSTER = "it needs a cluster of six machines; test_lane_operator.py has one of processes"
_INSTALL = "it builds and installs packages; tests/integration/test_package.py does so"
_BLOCK_TIMEOUT_S: Final = 300
"""A command that shows something until Ctrl-C fails after this time."""
NOT_RUN: Final = {
    "README.md": {
        "make demo": "tests/integration/test_demo.py runs the demo; make test runs this test",
        ".venv/bin/imagefleet demo": "tests/integration/test_demo.py runs it",
        "make wheel": _INSTALL,
        'pip install "$(echo': _INSTALL,
        "imagefleet bulk run prompts.parquet s3": "it needs a bucket; test_bulk_storage.py has one",
        "export IMAGEFLEET_REDIS_URL": _MODELS,
    },
    "docs/callbacks.md": {
        "imagefleet webhooks test https": "it needs the Internet; test_webhook_test.py runs it",
        "imagefleet webhooks replay cat-1.failed": "it needs a failed job; test_operator.py",
    },
    "docs/controlnet.md": {
        "imagefleet-worker --model": _MODELS,
        "imagefleet submit": _CONTROL_NET,
        "from pathlib": _CONTROL_NET,
    },
    "docs/deploy-compose.md": {"docker": _CONTAINERS, "key=$(docker": _CONTAINERS},
    "docs/http.md": {
        'pip install "imagefleet': "it serves until it is stopped; the other examples call it",
        "imagefleet keys create": "there is no such key to revoke; test_keys_command.py has one",
        "IMAGEFLEET_HTTP_USER_HEADER": "it is a part of a file of settings",
    },
    "docs/deploy-gke.md": {"export PROJECT": _CLOUD, "gcloud": _CLOUD, "kubectl": _CLOUD},
    "docs/deploy-gpu.md": {"make wheel": _INSTALL, "docker": _CONTAINERS},
    "docs/deploy-tpu-vm.md": {
        "export PROJECT": _CLOUD,
        "gcloud": _CLOUD,
        "make archive": _CLOUD,
        "export METADATA": _CLOUD,
        "for host in": _CLOUD,
        "imagefleet fleet --watch": _LONG,
        "imagefleet workers drain": _CLOUD,
    },
    "docs/engine.md": {"imagefleet-worker --model": _MODELS},
    "docs/lora.md": {
        "imagefleet-worker --model": _MODELS,
        "imagefleet submit": _LORA,
        "from imagefleet": _LORA,
    },
    "docs/models.md": {
        "python -c": "it needs PyTorch, diffusers and a checkpoint of gigabytes",
        "imagefleet-worker --model": _MODELS,
    },
    "docs/operations.md": {
        "imagefleet workers drain": "there is no such worker; test_fleet_status.py drains one",
        "imagefleet-worker doctor": "it needs the host of a worker; test_doctor.py has one",
        "imagefleet-worker --models": _MODELS,
        "imagefleet exporter": _LONG,
    },
    "docs/page.md": {"make page": _LONG},
    "docs/redis.md": {
        "mkdir -p redis": _LONG,
        "valkey-cli --cluster create": _CLUSTER,
        "OLD=redis": _CLUSTER,
    },
    "docs/reliability.md": {
        "imagefleet dead-letters show": "it needs dead letters; test_operator.py makes some",
        "make chaos": _LONG,
    },
    "docs/testing.md": {"apt-get install prometheus": _LONG},
    "docs/tpu.md": {
        "make tpu": _LONG,
        "imagefleet-worker plan": _MODELS,
        'pip install "$(echo dist': _INSTALL,
    },
}
"""For each document the beginnings of the blocks that are not run, and the reasons."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a document."""

    document: str
    line: int
    language: str
    text: str

    @property
    def reason_not_to_run(self) -> str | None:
        reasons = NOT_RUN.get(self.document, {})
        return next((why for start, why in reasons.items() if self.text.startswith(start)), None)


def _blocks() -> list[Block]:
    documents = ["README.md", *(f"docs/{path.name}" for path in sorted(ROOT.glob("docs/*.md")))]
    return [
        Block(
            document=name,
            line=text.count("\n", 0, found.start()) + 1,
            language=found[1],
            text=found[2],
        )
        for name in documents
        for text in [(ROOT / name).read_text()]
        for found in _BLOCK.finditer(text)
    ]


def _programs() -> dict[str, list[Block]]:
    """Return the blocks that are run, by document."""
    programs: dict[str, list[Block]] = {}
    for block in _blocks():
        if block.language in _PROGRAMS and block.reason_not_to_run is None:
            programs.setdefault(block.document, []).append(block)
    return programs


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as environment:
        yield environment


@pytest.fixture
def gateway(
    environment: dict[str, str], tmp_path: Path, document: str
) -> Iterator[GatewayProcess | None]:
    """A gateway for the examples that call one."""
    if document != "docs/http.md":
        yield None
        return
    with worker_processes(tmp_path / "gateway", environment) as start:
        yield start_gateway(start)


def _called(text: str, gateway: GatewayProcess | None) -> str:
    """Return an example with the gateway of this test, which needs no key, and its model."""
    if gateway is None:
        return text
    text = text.replace("http://127.0.0.1:8000", gateway.url).replace("ifk_…", "any")
    return text.replace("imagefleet/sd-1.4", "imagefleet/fake")


def _run(block: Block, environment: dict[str, str], folder: Path) -> str:
    """Run a block in the folder of its document. Return what it prints."""
    if block.language == "python":
        if "from celery import" in block.text:  # Celery does not know unix://
            url = celery_url(environment["IMAGEFLEET_REDIS_URL"])
            environment = {**environment, "IMAGEFLEET_REDIS_URL": url}
        done = run_python(["-c", block.text], environment, folder)
    else:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-e", "-c", block.text],
            cwd=folder,
            env={**os.environ, **environment, "PATH": path},
            capture_output=True,
            text=True,
            timeout=_BLOCK_TIMEOUT_S,
        )
    place = f"{block.document}:{block.line}\n"
    assert done.returncode == 0, place + done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("document", _programs())
def test_the_examples_of_a_document_run_in_order(
    environment: dict[str, str], tmp_path: Path, document: str, gateway: GatewayProcess | None
) -> None:
    blocks = [replace(each, text=_called(each.text, gateway)) for each in _programs()[document]]
    printed = "".join(_run(block, environment, tmp_path) for block in blocks)
    if document == "docs/datasets.md":
        report = "8 of 8 images in 1 shard, 0 failed; 2 rows with 8 images generated again"
        assert report in printed
    if document == "README.md":
        assert "circle-1  images/circle-1-0.png\n" in printed
        assert "circle-1  deleted\n" in printed
        assert list(tmp_path.glob("images/circle-1-0.png"))


def _imagefleet_commands() -> list[tuple[str, list[str]]]:
    """Return the words of each line that calls imagefleet, run or not, by document."""
    return [
        (block.document, shlex.split(line, comments=True)[1:])
        for block in _blocks()
        if block.language == "bash"
        for line in block.text.splitlines()
        if line.startswith("imagefleet ")
    ]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param(document, words, id=f"{number}-{document}")
        for number, (document, words) in enumerate(_imagefleet_commands())
    ],
)
def test_every_command_and_option_of_the_documents_exists(document: str, words: list[str]) -> None:
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, (document, words)
        command, words = command.commands[words[0]], words[1:]
    options = {each for parameter in command.params for each in parameter.opts}
    assert not {each for each in words if each.startswith("--")} - options, document


def test_every_block_says_what_it_is() -> None:
    known = _PROGRAMS | _NO_PROGRAMS
    unknown = [f"{each.document}:{each.line}" for each in _blocks() if each.language not in known]
    assert not unknown


def test_every_reason_not_to_run_a_block_is_that_of_a_block() -> None:
    used = {
        (block.document, start)
        for block in _blocks()
        if block.language in _PROGRAMS
        for start in NOT_RUN.get(block.document, {})
        if block.text.startswith(start)
    }
    assert used == {(name, start) for name, reasons in NOT_RUN.items() for start in reasons}
