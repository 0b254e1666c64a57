"""Every benchmark has a command line: `--help` explains it, and measures nothing."""

import importlib
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

_OF_OTHER_ENVIRONMENTS = tuple(
    f"benchmarks.race.{name}"
    for name in ("checkpoint", "flow_checkpoint", "pytorch_peer", "tutorial_peer")
)
"""`make race` runs these in environments that have PyTorch, or an older JAX."""
_WORKER = "benchmarks.traced_worker"
"""`benchmarks.worker_memory` starts it; its options are those of `imagefleet-worker`."""


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


BENCHMARKS = [
    name
    for path in sorted((ROOT / "benchmarks").rglob("*.py"))
    if "__main__" in path.read_text()
    and (name := _module(path)) not in (*_OF_OTHER_ENVIRONMENTS, _WORKER)
]


def test_the_benchmarks_are_found() -> None:
    assert {"benchmarks.recovery", "benchmarks.race.__main__"} <= set(BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_is_printed_and_nothing_is_measured(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert printed.startswith("usage: ")
    assert "--worker" not in printed
