"""The start-up script of a TPU VM replaces a worker only after everything is built beside it.

The script runs as it is, in a folder in place of `/opt` and `/etc`, with an archive as
`make archive` makes it. The commands that need a VM, root or a network are replaced by ones that
write down their calls; uv is one in the archive.
"""

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import ROOT
from tools.tpu_archive import make_archive, uv_requirement

_SCRIPT: Final = ROOT / "deploy/gcloud/startup.sh"
_TRIES: Final = 5
"""Of a host that has a worker."""
_UV: Final = '#!/bin/bash\necho "uv $*" >> {calls}\n'
_SETTINGS: Final = "IMAGEFLEET_MODEL=m\n"
_START: Final = "systemctl start --no-block imagefleet-worker"


class Host:
    """A folder that stands for a VM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live = folder / "opt/imagefleet"
        self._metadata = folder / "metadata"
        for each in ("bin", "opt", "etc/systemd/system", "metadata", "dist"):
            (folder / each).mkdir(parents=True)
        self._calls = folder / "calls"
        self._make_tools()
        self.archive = self._make_archive(_UV.format(calls=self._calls))
        self.set_metadata("imagefleet-archive", f"gs://bucket/{self.archive.name}")
        self.set_metadata("imagefleet-archive-sha256", _sha256(self.archive))
        self.set_metadata("imagefleet-env", _SETTINGS)
        text = _SCRIPT.read_text()
        for each in ("/opt/", "/etc/"):
            text = text.replace(each, f"{folder}{each}")
        self._script = folder / "startup.sh"
        self._script.write_text(text)

    def _make_tools(self) -> None:
        last_part = "$(basename ${@: -1})"  # of the address
        self.replace("curl", f'cat "{self._metadata}/{last_part}" 2> /dev/null || exit 22')
        self.replace(
            "gcloud",
            f'[[ $1 == secrets ]] && exec cat "{self.folder}/secret"\n'
            f'cp "{self.folder}/dist/$(basename $3)" "$4"',
        )
        for name in ("id", "sleep", "systemctl"):
            self.replace(name, "")

    def _make_archive(self, uv: str) -> Path:
        wheel = self.folder / "imagefleet-0.2.0-py3-none-any.whl"
        wheel.touch()
        wheel_of_uv = self.folder / "uv-1.0-py3-none-manylinux2014_x86_64.whl"
        with zipfile.ZipFile(wheel_of_uv, "w") as file:
            entry = zipfile.ZipInfo("uv-1.0.data/scripts/uv")  # without the time of now
            entry.external_attr = 0o600 << 16
            file.writestr(entry, uv)
        return make_archive(wheel, wheel_of_uv, self.folder / "dist")

    def replace_uv(self, program: str) -> None:
        """Offer an archive with another uv."""
        self.archive = self._make_archive(program)
        self.set_metadata("imagefleet-archive", f"gs://bucket/{self.archive.name}")
        self.set_metadata("imagefleet-archive-sha256", _sha256(self.archive))

    def set_metadata(self, name: str, value: str) -> None:
        (self._metadata / name).write_text(value)

    def replace(self, tool: str, does: str) -> None:
        """Let `tool` write down its call, and then do this."""
        file = self.folder / "bin" / tool
        file.write_text(f'#!/bin/bash\necho "{tool} $*" >> {self._calls}\n{does}\n')
        file.chmod(0o755)

    def fail_at_first(self, tool: str, times: int) -> None:
        """Let the first calls of `tool` fail."""
        original, count = self.folder / "bin" / tool, self.folder / f"{tool}-failed"
        moved = shutil.move(original, self.folder / f"{tool}-original")
        self.replace(
            tool,
            f'if (( $(wc -l < "{count}" 2> /dev/null || echo 0) < {times} )); then\n'
            f'  echo failed >> "{count}"; exit 7\nfi\nexec "{moved}" "$@"',
        )

    def run(self) -> tuple[int, list[str]]:
        """Run the script. Return its exit code and the calls of tools."""
        self._calls.write_text("")
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        done = subprocess.run(["bash", self._script], env={**os.environ, "PATH": path})
        return done.returncode, self._calls.read_text().splitlines()

    def environments(self) -> list[Path]:
        return sorted(self.live.parent.glob("imagefleet.*"))


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _called(calls: list[str], tool: str) -> list[str]:
    return [call for call in calls if call.split()[0] == tool]


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
        _START,
    ]
    assert host.live.is_symlink()
    assert host.live.resolve().stat().st_mode & 0o777 == 0o755
    settings = host.folder / "etc/imagefleet/worker.env"
    assert settings.read_text() == _SETTINGS
    assert settings.stat().st_mode & 0o777 == 0o600
    unit = host.folder / "etc/systemd/system/imagefleet-worker.service"
    assert unit.read_text() == (ROOT / "deploy/systemd/imagefleet-worker.service").read_text()


def test_the_certificates_of_redis_are_installed_for_the_worker(host: Host) -> None:
    certificates = host.folder / "etc/imagefleet/redis-ca.pem"
    assert host.run()[0] == 0
    assert not certificates.exists()
    host.set_metadata("imagefleet-redis-ca", "-----BEGIN CERTIFICATE-----\n")
    assert host.run()[0] == 0
    assert certificates.read_text() == "-----BEGIN CERTIFICATE-----\n"
    assert certificates.stat().st_mode & 0o777 == 0o644


def test_every_package_is_installed_by_its_hash_and_uv_comes_with_the_archive(host: Host) -> None:
    _, calls = host.run()
    [venv, packages, wheel] = _called(calls, "uv")
    assert "venv" in venv
    assert "--require-hashes" in packages
    assert "--no-deps" in wheel
    assert "pip install" not in " ".join(_called(calls, "python3"))


def test_settings_come_from_a_secret_if_one_is_named(host: Host) -> None:
    host.set_metadata("imagefleet-env-secret", "imagefleet-worker-env")
    (host.folder / "secret").write_text("IMAGEFLEET_MODEL=secret\n")
    code, calls = host.run()
    assert code == 0
    assert "gcloud secrets versions access latest --secret imagefleet-worker-env" in _called(
        calls, "gcloud"
    )
    settings = host.folder / "etc/imagefleet/worker.env"
    assert settings.read_text() == "IMAGEFLEET_MODEL=secret\n"


def test_an_upgrade_leaves_the_new_environment_and_the_one_before(host: Host) -> None:
    host.run()
    first = host.live.resolve()
    assert host.run()[0] == 0
    second = host.live.resolve()
    assert second != first
    assert host.environments() == sorted([first, second])
    assert host.run()[0] == 0
    assert host.environments() == sorted([second, host.live.resolve()])


def test_an_environment_of_an_earlier_script_is_replaced_and_kept_once(host: Host) -> None:
    host.live.mkdir()
    assert host.run()[0] == 0
    assert host.live.is_symlink()
    assert host.environments() == sorted([host.live.with_suffix(".former"), host.live.resolve()])
    host.run()
    assert host.live.with_suffix(".former") not in host.environments()


@pytest.mark.parametrize("tool", ["curl", "gcloud", "tar", "python3", "uv"])
def test_a_failure_leaves_the_worker_as_it_was(host: Host, tool: str) -> None:
    host.run()
    before = host.live.resolve()
    if tool == "uv":
        host.replace_uv("#!/bin/bash\nexit 7\n")
    else:
        host.replace(tool, "exit 7")
    code, calls = host.run()
    assert code == 7
    assert _called(calls, "systemctl") == [_START]
    assert host.live.resolve() == before
    assert host.environments() == [before]


def test_an_archive_with_another_digest_is_not_used(host: Host) -> None:
    host.run()
    before = host.live.resolve()
    host.set_metadata("imagefleet-archive-sha256", "0" * 64)
    code, calls = host.run()
    assert code != 0
    assert not _called(calls, "uv")
    assert host.live.resolve() == before
    assert len(_called(calls, "gcloud")) == _TRIES
    assert _called(calls, "sleep") == ["sleep 10", "sleep 20", "sleep 40", "sleep 80"]


def test_an_archive_without_a_digest_is_not_used(host: Host) -> None:
    host.run()
    (host.folder / "metadata/imagefleet-archive-sha256").unlink()
    code, calls = host.run()
    assert code != 0
    assert not _called(calls, "uv")


def test_a_host_without_a_worker_never_gives_up(host: Host) -> None:
    host.fail_at_first("gcloud", times=20)
    code, calls = host.run()
    assert code == 0
    assert _called(calls, "systemctl")[-1] == _START
    pauses = [int(call.split()[1]) for call in _called(calls, "sleep")]
    assert pauses[:6] == [10, 20, 40, 80, 160, 300]
    assert pauses[6:] == [300] * 14


def test_the_worker_starts_again_if_it_cannot_be_replaced(host: Host) -> None:
    host.run()
    host.replace("install", "exit 7")
    code, calls = host.run()
    assert code == 7
    assert calls[-1] == _START
    assert host.environments() != []


def test_equal_files_make_an_equal_archive(host: Host) -> None:
    before = host.archive.read_bytes()
    os.utime(host.folder / "imagefleet-0.2.0-py3-none-any.whl", (1, 1))
    again = host._make_archive(_UV.format(calls=host._calls))
    assert again == host.archive
    assert again.read_bytes() == before
    assert again.name == f"imagefleet-0.2.0-{_sha256(again)[:12]}.tar.gz"


def test_the_archive_has_the_uv_that_is_pinned_by_hash() -> None:
    pin = uv_requirement((ROOT / "requirements/build.txt").read_text())
    assert pin.startswith("uv==")
    assert "--hash=sha256:" in pin
