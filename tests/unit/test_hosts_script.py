"""`deploy/gcloud/hosts.sh` creates hosts that are missing or preempted, and no others."""

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
            f'#!/bin/sh\ncase " $* " in *" list "*) cat {folder}/listed;; '
            f'*) echo "$4 $5" >> {self._calls}; echo "$*" >> {folder}/options;; esac\n'
        )
        gcloud.chmod(0o755)
        self._path = f"{folder}:{os.environ['PATH']}"

    def run(self, *hosts: str, **changed: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **_VARIABLES, "PATH": self._path, **changed}
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
