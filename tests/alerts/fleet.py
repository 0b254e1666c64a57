"""A fleet for one cause of alerts: Redis, an exporter and workers, which Prometheus scrapes.

Start everything from the main thread: the kernel ends a process when the thread that started it
ends.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import redis

from imagefleet import Client
from imagefleet.shared.process.child_process import die_with_parent
from imagefleet.shared.redis_client.connection import connect
from tests.support.ports import reserved_port
from tests.support.processes import ROOT
from tests.support.prometheus import (
    EXPORTER_JOB,
    GATEWAY_JOB,
    WORKER_JOB,
    PrometheusServer,
    write_targets,
)
from tests.support.redis import TcpServer
from tests.support.settings import other_variables

SCRAPE_S: Final = 1.0
SLOW_SCRAPE_S: Final = 6.0
"""Between two scrapes of an exporter whose Redis hangs. It answers within 5 s, and Prometheus waits
for a page as long as its interval at most."""


_NONE: Final[Mapping[str, str]] = {}


class Targets:
    """The processes that Prometheus scrapes, in a file for each job."""

    def __init__(self, folder: Path) -> None:
        jobs = (WORKER_JOB, EXPORTER_JOB, GATEWAY_JOB)
        self.files = {job: folder / f"{job}.json" for job in jobs}
        self._targets: dict[tuple[str, int], dict[str, str]] = {}
        self._write()

    def add(self, job: str, port: int, scenario: str, interval_s: float = SCRAPE_S) -> None:
        """Let Prometheus scrape a port of this machine."""
        every = f"{interval_s:g}s"
        self._targets[job, port] = {
            "scenario": scenario,
            "__scrape_interval__": every,
            "__scrape_timeout__": every,
        }
        self._write()

    def remove(self, scenario: str) -> None:
        """Remove the processes of a fleet."""
        others = {at: each for at, each in self._targets.items() if each["scenario"] != scenario}
        self._targets = others
        self._write()

    def _write(self) -> None:
        for job, file in self.files.items():
            of_job = [(port, labels) for (j, port), labels in self._targets.items() if j == job]
            write_targets(
                file,
                [{"targets": [f"127.0.0.1:{port}"], "labels": labels} for port, labels in of_job],
            )


class Process:
    """A process of a fleet, with a log."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env={**other_variables(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent(),
            )

    def serves_metrics(self) -> bool:
        return re.search(r"metrics (and health )?on ", self._output()) is not None

    def ready(self) -> bool:
        """Whether this worker takes work. Raise AssertionError if it has ended."""
        output = self._output()
        assert self._process.poll() is None, f"a process has ended: {output[-2000:]}"
        return "ready after" in output

    def _output(self) -> str:
        return self.log.read_text(errors="replace")

    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)


class Fleet:
    """The fleet `name`, which is its namespace too: `with Fleet(…) as fleet: fleet.worker()`."""

    def __init__(
        self,
        name: str,
        folder: Path,
        redis_url: str | TcpServer,
        targets: Targets,
        prometheus: PrometheusServer,
        *,
        exporter_interval_s: float = SCRAPE_S,
    ) -> None:
        """
        Args:
            name: Words with hyphens.
            folder: Gets logs and stores.
            redis_url: The address of a Redis, or one of the fleet's own.
            targets: Gets the exporter and the workers.
            prometheus: It scrapes the targets.
            exporter_interval_s: Between two scrapes of the exporter.
        """
        folder.mkdir()
        self.name, self.folder = name, folder
        self.fired: dict[str, float] = {}
        """Seconds from the latest cause until each alert fired."""
        self.caused_at: float | None = None
        """When the latest cause happened (monotonic)."""
        self.stack = ExitStack()
        self.prometheus = prometheus
        self._redis_url, self._targets = redis_url, targets
        self._exporter_interval_s = exporter_interval_s
        self._silent: list[tuple[Process, str, int]] = []
        """Workers and gateways that do not serve metrics yet, with their jobs and ports."""
        self._count = 0

    def __enter__(self) -> Self:
        if isinstance(self._redis_url, TcpServer):
            self.redis_server = self.stack.enter_context(self._redis_url)
            url = f"redis://127.0.0.1:{self._redis_url.port}/0"
        else:
            url = self._redis_url
        self.settings = {"IMAGEFLEET_REDIS_URL": url, "IMAGEFLEET_NAMESPACE": self.name}
        self.redis: redis.Redis = connect(url)
        self.client = self.stack.enter_context(Client(url, namespace=self.name))
        port = self.stack.enter_context(reserved_port())
        command = ["exporter", "--host", "127.0.0.1", "--port", str(port)]
        self.exporter = self.run("-m", "imagefleet.producer", *command)
        self._targets.add(EXPORTER_JOB, port, self.name, self._exporter_interval_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._targets.remove(self.name)
        self.stack.close()

    def run(self, *command: str, **settings: str) -> Process:
        """Start a process with the settings of the fleet. It is killed with the fleet."""
        self._count += 1
        log = self.folder / f"{self._count}-{command[1].rpartition('.')[2]}.log"
        process = Process(command, {**self.settings, **settings}, log)
        self.stack.callback(process.kill)
        return process

    def reserve_port(self) -> int:
        """Reserve a port of this machine for the life of the fleet."""
        return self.stack.enter_context(reserved_port())

    def worker(
        self,
        model: str = "fake:seconds=0.02",
        settings: Mapping[str, str] = _NONE,
        *,
        module: str = "imagefleet.worker",
        port: int | None = None,
    ) -> Process:
        """Start a worker. It serves metrics at `port`, by default a free one; see `watch`."""
        port = port or self.reserve_port()
        defaults = {
            "IMAGEFLEET_MODEL": model,
            "IMAGEFLEET_STORAGE_URL": f"file://{self.folder}/store",
            "IMAGEFLEET_METRICS_HOST": "127.0.0.1",
            "IMAGEFLEET_METRICS_PORT": str(port),
            "IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.1",
        }
        worker = self.run("-m", module, **{**defaults, **settings})
        self._silent.append((worker, WORKER_JOB, port))
        return worker

    def gateway(self) -> str:
        """Start a gateway, and return its address; see `watch`."""
        port, metrics = self.reserve_port(), self.reserve_port()
        gateway = self.run(
            *("-m", "imagefleet.producer", "serve", "--port", str(port)),
            IMAGEFLEET_HTTP_METRICS_HOST="127.0.0.1",
            IMAGEFLEET_HTTP_METRICS_PORT=str(metrics),
        )
        self._silent.append((gateway, GATEWAY_JOB, metrics))
        return f"http://127.0.0.1:{port}"

    def watch(self) -> None:
        """Let Prometheus scrape the workers and gateways that have begun to serve metrics."""
        for process, job, port in list(self._silent):
            if process.serves_metrics():
                self._targets.add(job, port, self.name)
                self._silent.remove((process, job, port))

    def caused(self) -> None:
        """Note that the cause of the next alerts has happened now."""
        self.caused_at = time.monotonic()

    def number(self, metric: str, labels: str = "") -> float:
        """Return the sum of a metric of this fleet as Prometheus has it; 0 without a sample."""
        return self.prometheus.number(f'sum({metric}{{scenario="{self.name}"{labels}}})')


def pause(seconds: float) -> Callable[[], bool]:
    """Return a condition that is true after some seconds."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
