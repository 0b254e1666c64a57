"""What an installed wheel puts into a Python environment, and what it leaves alone."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from itertools import count
from pathlib import Path

import pytest

from tests.support.processes import ROOT

PACKAGES = ("producer", "shared", "worker")
TESTING = "src/imagefleet/testing"

USER_CODE = """\
from pathlib import Path
from typing import Unpack

from imagefleet import Client, InvalidRequest, JobParameters, JobResult, QueueFull


def generate(prompt: str, **parameters: Unpack[JobParameters]) -> JobResult:
    client = Client("redis://localhost:6379/0")
    try:
        job = client.submit(prompt, **parameters)
        client.submit_many([{"prompt": prompt, "seed": 7}], image=Path("a.png"), format="webp")
    except (InvalidRequest, QueueFull) as error:
        raise SystemExit(str(error)) from error
    return job.result(timeout=900)
"""

WRONG_CALLS = {
    'submit("a", steps=3)': 'Unexpected keyword argument "steps"',
    'submit("a", seed="7")': 'Argument "seed"',
    'submit_many(["a"], tenants="gold")': 'Unexpected keyword argument "tenants"',
}
"""Calls of a client, and how the error of the type checker begins."""


def _build(target: str, source: Path, folder: Path) -> Path:
    """Build a wheel or an sdist of `source` with the pinned hatchling."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and with the dependencies of the one that runs the tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # Python does not read the .pth files there, so the editable install stays outside.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def _run(python: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_file_of_the_three_folders_and_nothing_else(wheel: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    files = {name for name in listed.stdout.split() if (ROOT / name).exists()}
    testing = {f"imagefleet/testing/{path.name}" for path in (ROOT / TESTING).glob("*.py")}
    own = testing | {"imagefleet/__init__.py", "imagefleet/py.typed"}
    assert _names(wheel) == own | {f"imagefleet/{name}" for name in files}


def test_a_wheel_built_from_the_sdist_is_the_same(wheel: Path, tmp_path: Path) -> None:
    sdist = _build("sdist", ROOT, tmp_path / "sdist")
    (tmp_path / "source").mkdir()
    subprocess.run(["tar", "-xf", sdist, "-C", tmp_path / "source"], check=True)
    [source] = (tmp_path / "source").iterdir()
    assert _names(_build("wheel", source, tmp_path / "wheel")) == _names(wheel)


@pytest.mark.parametrize("name", PACKAGES)
def test_no_common_word_reaches_site_packages(python: Path, tmp_path: Path, name: str) -> None:
    ended = _run(python, tmp_path, "-c", f"import {name}")
    assert f"ModuleNotFoundError: No module named '{name}'" in ended.stderr


def test_a_users_own_modules_of_the_same_names_change_nothing(python: Path, tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("raise RuntimeError('not this one')\n")
    for name in ("worker", "producer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "script.py").write_text(
        "from imagefleet import Client\n"
        "import imagefleet.shared.errors, imagefleet.producer.commands.cli\n"
        "import imagefleet.worker.settings.worker_settings\n"
        "print(imagefleet.__file__)\n"
    )
    ended = _run(python, tmp_path, "script.py")
    assert ended.returncode == 0, ended.stderr
    assert Path(ended.stdout.strip()).is_relative_to(python.parents[1])


@pytest.mark.parametrize("module", ["imagefleet.producer", "imagefleet.worker"])
def test_both_commands_run(python: Path, tmp_path: Path, module: str) -> None:
    ended = _run(python, tmp_path, "-m", module, "--help")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("Usage: ")


def test_importing_the_package_loads_nothing_else_of_it(python: Path, tmp_path: Path) -> None:
    code = "import imagefleet, sys; print(*sys.modules)"
    loaded = _run(python, tmp_path, "-c", code).stdout.split()
    assert "imagefleet" in loaded
    assert not {"jax", "numpy", "pydantic", "redis", "imagefleet.producer"} & set(loaded)


def test_type_checks_accept_a_users_program_and_find_each_wrong_parameter(
    python: Path, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(USER_CODE)
    calls = "\n".join(f"client.{call}" for call in WRONG_CALLS)
    (tmp_path / "wrong.py").write_text(
        f"from imagefleet import Client\nclient = Client()\n{calls}\n"
    )
    command = ["-m", "mypy", "--strict", "--python-executable", str(python), "."]
    ended = _run(Path(sys.executable), tmp_path, *command)
    assert ended.stdout, ended.stderr
    *lines, summary = ended.stdout.splitlines()
    errors = [line for line in lines if ": note: " not in line]
    assert summary == f"Found {len(WRONG_CALLS)} errors in 1 file (checked 2 source files)"
    # The calls begin in line 3.
    for line, error, expected in zip(count(3), errors, WRONG_CALLS.values(), strict=False):
        assert error.startswith(f"wrong.py:{line}: error: {expected}")
