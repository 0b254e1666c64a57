"""No file is longer than its limit. The limits of functions are in pyproject.toml, for ruff."""

import subprocess
from pathlib import Path

import pytest

from tests.support.processes import ROOT

MAX_LINES = {"worker/engine/models/": 450, "tests/": 700, "": 300}
"""The maximum number of lines by the beginning of a path. The first match applies."""


def _limit(path: str) -> int:
    return next(lines for beginning, lines in MAX_LINES.items() if path.startswith(beginning))


def _python_files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in listed.stdout.split() if (ROOT / path).is_file()]


@pytest.mark.parametrize("path", _python_files())
def test_no_file_is_longer_than_its_limit(path: str) -> None:
    assert len(Path(ROOT, path).read_text().splitlines()) <= _limit(path)
