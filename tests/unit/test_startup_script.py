"""The start-up script of a TPU VM replaces a worker only after everything is built beside it.

The script runs as it is, in a folder in place of `/opt` and `/etc`. The commands that need a VM,
root or a network are replaced by ones that write down their calls.
"""

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import ROOT

_SCRIPT: Final = ROOT / "deploy/gcloud/startup.sh"
_TOOLS: Final = {
    "curl": "echo IMAGEFLEET_MODEL=m",
    "gcloud": "",
    "id": "",
    "python3": "",
    "systemctl": "",
    "tar": 'touch "${@: -1}"/imagefleet-0.2.0.whl "${@: -1}"/imagefleet-worker.service',
    "uv": "",
}


class Host:
    """A folder that stands for a VM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live = folder / "opt/imagefleet"
        for each in ("bin", "opt", "etc/systemd/system"):
            (folder / each).mkdir(parents=True)
        self._calls = folder / "calls"
        for name, does in _TOOLS.items():
            self.replace(name, does)
        text = _SCRIPT.read_text()
        for each in ("/opt/", "/etc/"):
            text = text.replace(each, f"{folder}{each}")
        self._script = folder / "startup.sh"
        self._script.write_text(text)

    def replace(self, tool: str, does: str) -> None:
        """Let `tool` write down its call, and then do this."""
        file = self.folder / "bin" / tool
        file.write_text(f'#!/bin/bash\necho "{tool} $*" >> {self._calls}\n{does}\n')
        file.chmod(0o755)

    def run(self) -> tuple[int, list[str]]:
        """Run the script. Return its exit code and the calls of tools."""
        self._calls.write_text("")
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        done = subprocess.run(["bash", self._script], env={**os.environ, "PATH": path})
        return done.returncode, self._calls.read_text().splitlines()

    def environments(self) -> list[Path]:
        return sorted(self.live.parent.glob("imagefleet.*"))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_worker_stops_after_the_new_environment_is_built(host: Host) -> None:
    code, calls = host.run()
    assert code == 0
    built = max(number for number, call in enumerate(calls) if call.startswith("uv"))
    assert calls[built + 1 :] == [
        "systemctl stop imagefleet-worker",
        "systemctl daemon-reload",
        "systemctl start --no-block imagefleet-worker",
    ]
    assert host.live.is_symlink()
    assert host.live.resolve().stat().st_mode & 0o777 == 0o755
    settings = host.folder / "etc/imagefleet/worker.env"
    assert settings.read_text() == "IMAGEFLEET_MODEL=m\n"
    assert settings.stat().st_mode & 0o777 == 0o600


def test_an_upgrade_leaves_the_new_environment_alone(host: Host) -> None:
    host.run()
    before = host.live.resolve()
    assert host.run()[0] == 0
    assert host.live.resolve() != before
    assert host.environments() == [host.live.resolve()]


def test_an_environment_of_an_earlier_script_is_replaced(host: Host) -> None:
    host.live.mkdir()
    assert host.run()[0] == 0
    assert host.live.is_symlink()
    assert host.environments() == [host.live.resolve()]


@pytest.mark.parametrize("tool", ["curl", "gcloud", "tar", "python3", "uv"])
def test_a_failure_leaves_the_worker_as_it_was(host: Host, tool: str) -> None:
    host.run()
    before = host.live.resolve()
    host.replace(tool, "exit 7")
    code, calls = host.run()
    assert code == 7
    assert [call for call in calls if call.startswith("systemctl")] == [
        "systemctl start --no-block imagefleet-worker"
    ]
    assert host.live.resolve() == before
    assert host.environments() == [before]


def test_the_worker_starts_again_if_it_cannot_be_replaced(host: Host) -> None:
    host.run()
    host.replace("install", "exit 7")
    code, calls = host.run()
    assert code == 7
    assert calls[-1] == "systemctl start --no-block imagefleet-worker"
    assert host.environments() != []
