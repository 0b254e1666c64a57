"""`deploy/gcloud/hosts.sh` creates hosts that are missing or preempted, and no others."""

import fcntl
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import ROOT

_SCRIPT: Final = ROOT / "deploy/gcloud/hosts.sh"
_VARIABLES: Final = {
    "ZONE": "us-west4-a",
    "ACCOUNT": "imagefleet@project.iam.gserviceaccount.com",
    "METADATA": "imagefleet-env-secret=imagefleet-env",
}


class _Cloud:
    """A gcloud that lists the given hosts and writes down all other calls."""

    def __init__(self, folder: Path, listed: str) -> None:
        self._calls = folder / "calls"
        self._calls.touch()
        (folder / "listed").write_text(listed)
        gcloud = folder / "gcloud"
        gcloud.write_text(
            f'#!/bin/sh\ncase " $* " in *" list "*) exec cat {folder}/listed;; esac\n'
            f'echo "$4 $5" >> {self._calls}\necho "$*" >> {folder}/options\n'
            f'! grep -q "^$4 $5$" {folder}/failing\n'
        )
        (folder / "failing").touch()
        gcloud.chmod(0o755)
        self._own = {"PATH": f"{folder}:{os.environ['PATH']}", "TMPDIR": str(folder)}

    def run(self, *hosts: str, **changed: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **_VARIABLES, **self._own, **changed}
        return subprocess.run(
            ["bash", _SCRIPT, *hosts], env=environment, capture_output=True, text=True
        )

    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()


def test_missing_and_preempted_hosts_are_created(tmp_path: Path) -> None:
    cloud = _Cloud(tmp_path, "fleet-1\tACTIVE\nfleet-2\tSUSPENDED\nfleet-10\tSUSPENDED\n")
    done = cloud.run("fleet-1", "fleet-2", "fleet-3")
    assert done.returncode == 0, done.stderr
    assert cloud.calls() == ["delete fleet-2", "create fleet-2", "create fleet-3"]
    assert "fleet-1 is ACTIVE" in done.stdout


def test_a_host_gets_the_certificates_of_redis(tmp_path: Path) -> None:
    cloud = _Cloud(tmp_path, "")
    for variables, option in (
        ({}, f"startup-script={_SCRIPT.parent}/startup.sh --metadata "),
        ({"REDIS_CA": "ca.pem"}, "/startup.sh,imagefleet-redis-ca=ca.pem --metadata "),
    ):
        assert cloud.run("fleet-1", **variables).returncode == 0
        assert option in (tmp_path / "options").read_text().splitlines()[-1]


def test_a_failed_request_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    cloud = _Cloud(tmp_path, "fleet-1\tFAILED\nfleet-2\tWAITING_FOR_RESOURCES\n")
    done = cloud.run("fleet-1", "fleet-2", "fleet-3")
    assert done.returncode == 1
    assert "queued-resources describe fleet-1" in done.stderr
    assert cloud.calls() == ["create fleet-3"]


@pytest.mark.parametrize("failing", ["delete fleet-1", "create fleet-1"])
def test_the_other_hosts_are_created_if_a_command_fails(tmp_path: Path, failing: str) -> None:
    cloud = _Cloud(tmp_path, "fleet-1\tSUSPENDED\nfleet-2\tSUSPENDED\n")
    (tmp_path / "failing").write_text(f"{failing}\n")
    assert cloud.run("fleet-1", "fleet-2", "fleet-3").returncode == 1
    assert cloud.calls()[-3:] == ["delete fleet-2", "create fleet-2", "create fleet-3"]


def test_a_second_run_waits_for_the_next_time(tmp_path: Path) -> None:
    cloud = _Cloud(tmp_path, "")
    with (tmp_path / "imagefleet-hosts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cloud.run("fleet-1").returncode == 0
    assert cloud.calls() == []
    cloud.run("fleet-1")
    assert cloud.calls() == ["create fleet-1"]


def test_a_host_without_a_state_is_not_created(tmp_path: Path) -> None:
    cloud = _Cloud(tmp_path, "fleet-1\t\n")
    assert "fleet-1 is UNKNOWN" in cloud.run("fleet-1").stdout
    assert cloud.calls() == []


def test_a_call_without_hosts_fails(tmp_path: Path) -> None:
    done = _Cloud(tmp_path, "").run()
    assert done.returncode != 0
    assert "the name of a host" in done.stderr


def test_no_host_is_created_while_the_list_cannot_be_read(tmp_path: Path) -> None:
    cloud = _Cloud(tmp_path, "")
    (tmp_path / "listed").unlink()
    assert cloud.run("fleet-1").returncode != 0
    assert cloud.calls() == []


@pytest.mark.parametrize("name", _VARIABLES)
def test_each_variable_is_required(tmp_path: Path, name: str) -> None:
    cloud = _Cloud(tmp_path, "")
    done = cloud.run("fleet-1", **{name: ""})
    assert done.returncode != 0
    assert f"{name}: is the" in done.stderr or f"{name}: has the" in done.stderr
    assert cloud.calls() == []
