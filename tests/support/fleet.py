"""A fleet with the fake model in the default namespace, for programs that take no test settings."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.webhooks.signature import new_secret
from tests.support.processes import Worker


@contextmanager
def running_fleet(folder: Path) -> Iterator[dict[str, str]]:
    """Run Redis and one worker that is ready. Yield the environment that a producer needs."""
    with LocalRedisServer(folder / "redis") as server:
        producer = {
            "IMAGEFLEET_REDIS_URL": server.url,
            "IMAGEFLEET_WEBHOOK_SECRETS": new_secret(),
        }
        settings = {
            "IMAGEFLEET_MODEL": "fake:seconds=0.02,capacity=8",
            "IMAGEFLEET_STORAGE_URL": f"file://{folder}/store",
            "IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.1",
        }
        worker = Worker(folder, {**producer, **settings})
        try:
            worker.await_log("ready after")
            yield producer
        finally:
            worker.kill()
            print(worker.output()[-3000:])


def run_python(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path
) -> "subprocess.CompletedProcess[str]":
    """Run Python in `folder` with these arguments, as a user of the installed package does."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("IMAGEFLEET_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )
