"""The Python blocks of the documents run as they are against a real worker with the fake model."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fleet import run_python, running_fleet
from tests.support.processes import ROOT

DOCUMENTS = ("README.md", "docs/client.md", "docs/testing.md")
"""Each ```python block of these files is a complete program."""

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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_document_has_python_blocks(name: str) -> None:
    assert any(place.startswith(f"{name}:") for place, _ in _blocks())
