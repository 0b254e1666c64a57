"""A fleet with the fake model in the default namespace, for programs that take no test settings."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.webhooks.signature import new_secret
from tests.support.processes import worker_processes
from tests.support.settings import other_variables, worker_settings


@contextmanager
def running_fleet(folder: Path) -> Iterator[dict[str, str]]:
    """Run Redis and one worker that is ready. Yield the environment that a producer needs."""
    with LocalRedisServer(folder / "redis") as server:
        producer = {
            "IMAGEFLEET_REDIS_URL": server.url,
            "IMAGEFLEET_WEBHOOK_SECRETS": new_secret(),
        }
        settings = worker_settings(
            server.url, folder, IMAGEFLEET_CALLBACK_ALLOW="127.0.0.1", **producer
        )
        with worker_processes(folder, settings) as start:
            start().await_log("ready after")
            yield producer


def run_python(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path
) -> "subprocess.CompletedProcess[str]":
    """Run Python in `folder` with these arguments, as a user of the installed package does."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**other_variables(), **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )
