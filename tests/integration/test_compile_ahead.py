"""A worker takes executables that another process compiled ahead, and nothing that is damaged."""

import subprocess
import sys
from pathlib import Path

import pytest

from imagefleet.worker.process.exit_codes import ExitCode
from tests.support.processes import ROOT, StartWorker
from tests.unit.engine.parity import FOLDER


def _compile(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "imagefleet.worker", "compile", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def _as_flags(settings: dict[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def _as_variables(settings: dict[str, str]) -> dict[str, str]:
    return {f"IMAGEFLEET_{name.upper()}": value for name, value in settings.items()}


def _flags(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "model": str(FOLDER / "older"),
        "max_num_inference_steps": "20",
        "programs_url": f"file://{tmp_path}/programs",
        "programs_secret": "s",
        **more,
    }


def _compile_ahead(flags: dict[str, str], tmp_path: Path) -> list[str]:
    """Compile with these flags, and return the lines that the command printed."""
    done = _compile(*_as_flags(flags), f"--cache-dir={tmp_path}/ahead")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_worker_with_streams_compiles_nothing_that_was_compiled_ahead(
    start: StartWorker, tmp_path: Path
) -> None:
    flags = _flags(tmp_path, batching="continuous", devices="2", per_device_batch="2")
    printed = _compile_ahead(flags, tmp_path)
    assert len([line for line in printed if ": compiled in" in line]) == 7

    worker = start(**_as_variables(flags), IMAGEFLEET_CACHE_DIR=str(tmp_path / "worker"))
    worker.await_log("ready after")
    assert "0 programs compiled, 14 loaded" in worker.output()


def test_a_worker_compiles_nothing_that_was_compiled_ahead(
    start: StartWorker, tmp_path: Path
) -> None:
    flags = _flags(tmp_path, devices="1")
    printed = _compile_ahead(flags, tmp_path)
    assert len([line for line in printed if ": compiled in" in line]) == 6

    settings = _as_variables(flags)
    first = start(**settings, IMAGEFLEET_CACHE_DIR=str(tmp_path / "first"))
    first.await_log("ready after")
    assert "0 programs compiled, 6 loaded" in first.output()

    [preview] = (tmp_path / "programs").rglob("preview-*")
    preview.write_bytes(preview.read_bytes()[:-1])
    second = start(**settings, IMAGEFLEET_CACHE_DIR=str(tmp_path / "second"))
    second.await_log("ready after")
    assert "1 program compiled, 5 loaded" in second.output()
    assert second.output().count("damaged or not signed with our secret") == 1
    # The worker names what its executables are for in the words of the command.
    device = next(line for line in printed if line.startswith("device="))
    assert device in second.output()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--topology", "v9-8"), "topology='v9-8' is unknown; choose v2-8"),
        (("--model", "/nowhere"), "/nowhere is not a folder"),
        (
            ("--devices", "2", "--mesh", "data=1,model=3"),
            "--mesh='data=1,model=3' takes 3 devices",
        ),
        (("--programs-url", "file:///tmp"), "needs IMAGEFLEET_PROGRAMS_SECRET"),
        (
            ("--programs-url", "file:///dev/null/programs", "--programs-secret", "s"),
            "there is a file where a folder is needed",
        ),
    ],
)
def test_an_error_is_one_line_that_names_the_value(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    done = _compile(f"--cache-dir={tmp_path}/cache", *arguments)
    assert done.returncode == ExitCode.CONFIG
    [line] = done.stderr.splitlines()
    assert line.startswith("imagefleet-worker: ")
    assert sentence in line
