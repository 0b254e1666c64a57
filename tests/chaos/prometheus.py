"""A real Prometheus that scrapes the workers and the exporter of a chaos run every second.

Each worker process is a target of its own, as a pod is in Kubernetes: its counters begin at 0 with
it, and end with its last scrape. The rules are those of `deploy/prometheus`.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from imagefleet.shared.process.child_process import die_with_parent
from tests.chaos.fleet import Fleet
from tests.chaos.processes import ROOT
from tests.support.processes import until
from tests.support.prometheus import EXPORTER_JOB, WORKER_JOB, PrometheusServer, write_targets

SCRAPE_INTERVAL_S: Final = 1.0
_START_TIMEOUT_S: Final = 60.0
_DISCOVER_EVERY_S: Final = 0.2
METRICS_SETTINGS: Final = {"IMAGEFLEET_METRICS_PORT": "0", "IMAGEFLEET_METRICS_HOST": "127.0.0.1"}
"""Settings of a worker. It serves metrics on a free port, which it logs."""


class Prometheus:
    """`with Prometheus("prometheus", folder, environment, fleet) as found: … found.server.query(…)`

    It finds the workers of the fleet in their logs while it runs.
    """

    def __init__(
        self, binary: str, folder: Path, environment: Mapping[str, str], fleet: Fleet
    ) -> None:
        """
        Args:
            binary: `prometheus`, or its path.
            folder: Gets the configuration, the log and the samples.
            environment: Settings with which the exporter finds Redis.
        """
        folder.mkdir(parents=True)
        self._binary, self._folder, self._environment = binary, folder, environment
        self._targets = WorkerTargets(fleet, folder / "workers.json")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            config = _config(self._targets.file, self._start_exporter())
            self._stack.enter_context(self._targets)
            self.server = self._stack.enter_context(
                PrometheusServer(self._binary, self._folder, config)
            )
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def await_scrapes(self) -> None:
        """Wait until every living worker and the exporter were scraped after this call.

        Raises:
            AssertionError: one of them does not answer Prometheus.
        """
        called_at, deadline = time.time(), time.monotonic() + _START_TIMEOUT_S
        wanted = {*self._targets.names(), ""}
        while True:
            scraped = {
                each.labels.get("process", "")
                for each in self.server.query("timestamp(up == 1)")
                if each.samples[0][1] > called_at
            }
            if wanted <= scraped:
                return
            assert time.monotonic() < deadline, f"not scraped: {wanted - scraped}"
            time.sleep(SCRAPE_INTERVAL_S / 2)

    def _start_exporter(self) -> int:
        log = self._folder / "exporter.log"
        arguments = ["exporter", "--host", "127.0.0.1", "--port", "0"]
        self._start([sys.executable, "-m", "imagefleet.producer", *arguments], log)
        return until(lambda: _port_in(log), _START_TIMEOUT_S)

    def _start(self, command: Sequence[str], log: Path) -> None:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **self._environment},
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent(),
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)


class WorkerTargets:
    """Keeps a file of the living workers for Prometheus' `file_sd_configs`, from a thread."""

    def __init__(self, fleet: Fleet, file: Path) -> None:
        self.file = file
        self._fleet = fleet
        self._ports: dict[str, int] = {}
        """The port of each worker by its name, that of its log."""
        self._written: list[dict[str, object]] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="targets", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def names(self) -> list[str]:
        """Return the names of the living workers that serve metrics."""
        return [worker.log.stem for worker in self._fleet.workers if worker.log.stem in self._ports]

    def _loop(self) -> None:
        while not self._stopped.wait(_DISCOVER_EVERY_S):
            for worker in list(self._fleet.workers):
                port = None if worker.log.stem in self._ports else _port_in(worker.log)
                if port is not None:
                    self._ports[worker.log.stem] = port
            self._write()

    def _write(self) -> None:
        targets: list[dict[str, object]] = [
            {"targets": [f"127.0.0.1:{self._ports[name]}"], "labels": {"process": name}}
            for name in self.names()
        ]
        if targets != self._written:
            write_targets(self.file, targets)
            self._written = targets


def _config(targets: Path, exporter_port: int) -> dict[str, object]:
    """Return the configuration."""
    interval = f"{SCRAPE_INTERVAL_S:.0f}s"
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(ROOT / "deploy/prometheus/alerts.yml")],
        "scrape_configs": [
            {
                "job_name": WORKER_JOB,
                "file_sd_configs": [{"files": [str(targets)], "refresh_interval": interval}],
            },
            {
                "job_name": EXPORTER_JOB,
                "static_configs": [{"targets": [f"127.0.0.1:{exporter_port}"]}],
            },
        ],
    }


def _port_in(log: Path) -> int | None:
    """Return the port that a worker or the exporter has logged; None if it has not yet."""
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        if "metrics" in line and " port " in line:
            return int(line.rpartition(" port ")[2])
    return None
