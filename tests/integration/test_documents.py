"""The Python blocks of the documents run as they are against a real worker with the fake model."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fleet import run_python, running_fleet
from tests.support.processes import ROOT

DOCUMENTS = (
    "README.md",
    "docs/callbacks.md",
    "docs/client.md",
    "docs/datasets.md",
    "docs/testing.md",
)
"""Each ```python block of these files is a complete program."""

_SHELL_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks() -> list[tuple[str, str]]:
    """Return each block, named by its file and line."""
    found = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        for block in _BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            found.append((f"{name}:{line}", block.group(1)))
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as environment:
        yield environment


@pytest.mark.parametrize("program", [pytest.param(code, id=place) for place, code in _blocks()])
def test_a_python_block_runs_as_it_is(
    environment: dict[str, str], tmp_path: Path, program: str
) -> None:
    done = run_python(["-c", program], environment, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def _run_commands(document: str, environment: dict[str, str], folder: Path) -> str:
    """Run the only ```bash block of a document, and return what it prints."""
    [commands] = _SHELL_BLOCK.findall((ROOT / document).read_text())
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=folder,
        env={**os.environ, **environment, "PATH": f"{bin_folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands_for_datasets_run_as_they_are(
    environment: dict[str, str], tmp_path: Path
) -> None:
    printed = _run_commands("docs/datasets.md", environment, tmp_path)
    assert "8 of 8 images in 1 shards, 0 failed; 8 generated again" in printed


def test_the_commands_of_the_readme_run_as_they_are(
    environment: dict[str, str], tmp_path: Path
) -> None:
    printed = _run_commands("README.md", environment, tmp_path)
    assert "circle-1  pictures/circle-1-0.png\n" in printed
    assert "circle-1  deleted\n" in printed
    assert (tmp_path / "pictures/circle-1-0.png").exists()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_document_has_python_blocks(name: str) -> None:
    assert any(place.startswith(f"{name}:") for place, _ in _blocks())
