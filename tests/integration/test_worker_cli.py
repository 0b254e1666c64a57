"""The command `imagefleet-worker`: its name in Celery, and what it needs to be installed."""

import subprocess
import sys
from importlib import metadata

import pytest
from celery import Celery
from click.testing import CliRunner

from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.commands.cli import _node_name, main
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.settings.worker_settings import WorkerSettings
from tests.support.control_messages import remote_control_app
from tests.support.processes import StartWorker, until

WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from imagefleet.worker.commands.cli import main
main([])
"""


@pytest.mark.parametrize("packages", ["numpy", "celery,jax,flax,numpy,PIL"])
def test_a_worker_without_its_extra_says_what_to_install(packages: str) -> None:
    command = [sys.executable, "-c", WITHOUT, packages]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == ExitCode.CONFIG
    assert ended.stderr == (
        f"imagefleet-worker: {', '.join(packages.split(','))} cannot be imported; install "
        'imagefleet with its extra: pip install "imagefleet-….whl[worker]" (README.md)\n'
    )


def test_the_worker_prints_its_version() -> None:
    command = [sys.executable, "-m", "imagefleet.worker", "--version"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout == f"imagefleet-worker, version {metadata.version('imagefleet')}\n"


def test_the_help_shows_the_commands_and_the_options_of_the_default_one() -> None:
    shown = CliRunner().invoke(main, ["--help"]).output
    commands, options = shown.split("Options of run, the default command:\n")
    for name in main.commands:
        assert f"\n  {name} " in commands
    for name in (*WorkerSettings.model_fields, "loglevel"):
        assert f"\n  --{name.replace('_', '-')} " in f"\n{options}"


@pytest.mark.parametrize("given", [["-n", "w"], ["-nw"], ["--hostname", "w"], ["--hostname=w"]])
def test_a_worker_keeps_the_name_that_its_user_gives(given: list[str]) -> None:
    assert _node_name(given) == []
    assert _node_name(["-E"])[0] == "--hostname"


def _nodes(app: Celery) -> set[str]:
    return {name for answer in app.control.ping(timeout=3) for name in answer}


def test_two_workers_of_one_host_are_two_nodes(
    start: StartWorker, redis_server: LocalRedisServer, namespace: str
) -> None:
    for worker in (start(), start()):
        worker.await_log("ready after")
        worker.await_log("Connected to")
    with remote_control_app(redis_server.url, namespace) as app:
        # A node answers only once its remote control has connected.
        names = until(lambda: found if len(found := _nodes(app)) == 2 else None)
    assert all(name.startswith("imagefleet-") for name in names)
