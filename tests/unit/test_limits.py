"""How long a file may be. ruff holds the limits of functions; see pyproject.toml."""

import subprocess
from collections.abc import Iterator

from tests.support.processes import ROOT

MAX_LINES = {
    "worker/settings/worker_settings.py": 400,  # a split would be a chain of parents
    "shared/webhooks/outbox.py": 400,  # the same
    "worker/engine/families/": 400,
    "worker/engine/networks/": 400,
    "shared/jobs/request.py": 400,  # one class with the table of parameters
    "tests/": 700,
    "": 300,
}
"""The most lines of a file, by the beginning of its path; the first that fits holds."""


def _limit(path: str) -> int:
    return next(lines for beginning, lines in MAX_LINES.items() if path.startswith(beginning))


def _line_counts() -> Iterator[tuple[str, int]]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    for path in listed.stdout.split():
        if (ROOT / path).is_file():
            yield path, len((ROOT / path).read_text().splitlines())


def test_no_file_is_longer_than_its_limit() -> None:
    counts = dict(_line_counts())
    assert len(counts) > 300
    assert {path: lines for path, lines in counts.items() if lines > _limit(path)} == {}
