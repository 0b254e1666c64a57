"""A real Prometheus server: a process with a configuration, which tests ask over HTTP."""

import json
import math
import os
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from imagefleet.shared.process.child_process import die_with_parent
from tests.support.ports import reserved_port
from tests.support.processes import ROOT, until

WORKER_JOB: Final = "imagefleet-worker"
"""The `job` label of the workers, as in `deploy/prometheus/prometheus.yml`."""
EXPORTER_JOB: Final = "imagefleet-exporter"
GATEWAY_JOB: Final = "imagefleet-gateway"
_START_TIMEOUT_S: Final = 60.0
_REQUEST_TIMEOUT_S: Final = 30.0


class Series(NamedTuple):
    """One time series: its labels, and its samples as (Unix seconds, value)."""

    labels: dict[str, str]
    samples: list[tuple[float, float]]


class PrometheusServer:
    """`with PrometheusServer("prometheus", folder, config) as server: … server.query(…)`

    Start it from the main thread: the kernel ends it when the thread that started it ends.
    """

    def __init__(self, binary: str, folder: Path, config: Mapping[str, object]) -> None:
        """
        Args:
            binary: `prometheus`, or its path.
            folder: An existing one, which gets the configuration, the log and the samples.
            config: The configuration.
        """
        self._binary, self._folder, self._config = binary, folder, config
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._url = f"http://127.0.0.1:{self._stack.enter_context(reserved_port())}"
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def query(self, expression: str) -> list[Series]:
        """Return the result of an instant query now: one sample a series, or those of a range."""
        return _series(self._get("/api/v1/query", query=expression)["result"])

    def query_range(self, expression: str, start: float, end: float, step_s: float) -> list[Series]:
        """Return the values of an expression between two times, as a dashboard shows them."""
        times = {"start": str(start), "end": str(end), "step": str(step_s)}
        return _series(self._get("/api/v1/query_range", query=expression, **times)["result"])

    def number(self, expression: str) -> float:
        """Return the value of a query that has one, or 0 if it has none."""
        found = self.query(expression)
        assert len(found) <= 1, expression
        return found[0].samples[0][1] if found else 0.0

    def failed_rules(self) -> list[str]:
        """Return the alert rules that could not be evaluated, with Prometheus' reason."""
        groups = self._get("/api/v1/rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert rules, "Prometheus has no rules"
        return [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule["health"] == "err"]

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of the alerts that fire now."""
        alerts = self._get("/api/v1/alerts")["alerts"]
        return [each["labels"] for each in alerts if each["state"] == "firing"]

    def _start(self) -> None:
        config = self._folder / "prometheus.yml"
        config.write_text(json.dumps(self._config))  # JSON is YAML too
        flags = {
            "config.file": config,
            "storage.tsdb.path": self._folder / "samples",
            "web.listen-address": self._url.removeprefix("http://"),
        }
        with (self._folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(
                [self._binary, *(f"--{name}={value}" for name, value in flags.items())],
                cwd=ROOT,
                env=os.environ,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(),
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        until(self._ready, _START_TIMEOUT_S)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=_REQUEST_TIMEOUT_S):
                return True
        except OSError:
            return False

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=_REQUEST_TIMEOUT_S) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
            return data


def write_targets(file: Path, targets: object) -> None:
    """Write the targets of `file_sd_configs`, so that Prometheus never sees half a file."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(targets))
    new.rename(file)


def has_number(series: Series) -> bool:
    """Return whether a series has a sample that is a number: 0/0 is none."""
    return any(not math.isnan(value) for _, value in series.samples)


def _series(found: list[dict[str, Any]]) -> list[Series]:
    pairs = [each["values"] if "values" in each else [each["value"]] for each in found]
    return [
        Series(each["metric"], [(at, float(value)) for at, value in samples])
        for each, samples in zip(found, pairs, strict=True)
    ]
