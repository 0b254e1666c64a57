"""The alerts, the dashboard and the documentation name the metrics that exist, and no others."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families

from imagefleet.producer.fleet_metrics import FleetCollector
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.fleet_status import FleetStatus, QueueStatus
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.worker.process import metrics
from tests.support.processes import ROOT

_ALERTS = ROOT / "deploy/prometheus/alerts.yml"
_CONFIG = ROOT / "deploy/prometheus/prometheus.yml"
_AUTOSCALER = ROOT / "deploy/kubernetes/autoscale/scaled-object.yaml"
_DASHBOARD = ROOT / "deploy/grafana/imagefleet.json"
_PAGE = ROOT / "docs/operations.md"
_NAME = re.compile(r"\bimagefleet_[a-z_]+\b")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def _queue(number: int) -> QueueStatus:
    return QueueStatus(
        model=f"m{number}",
        shape="native",
        datasets=False,
        waiting=1,
        tenants=1,
        oldest_s=2.0 + number,
    )


def _status(queues: int = 1) -> FleetStatus:
    return FleetStatus(
        workers=(WorkerStatus(worker="w", state=WorkerState.READY, model="m0"),),
        queues=tuple(_queue(number) for number in range(queues)),
        waiting=queues,
        in_flight=3,
        in_flight_shards=1,
        delayed=4,
        dead_letters=5,
        dead_letters_dropped=10,
        callbacks=6,
        callbacks_given_up=7,
        job_ends={"succeeded": 8, "failed:device_error": 9},
    )


def _export(collector: FleetCollector) -> dict[tuple[str, str], float]:
    """Return the exported values by metric and label values."""
    registry = CollectorRegistry()
    registry.register(collector)
    return {
        (sample.name, " ".join(filter(None, sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def _defined() -> Iterator[str]:
    """Yield the names of all metrics as they are queried, but without a histogram's suffixes."""
    kinds = (Counter, Gauge, Histogram, Info)
    for metric in (each for each in vars(metrics).values() if isinstance(each, kinds)):
        for family in metric.collect():
            yield {"counter": f"{family.name}_total", "info": f"{family.name}_info"}.get(
                family.type, family.name
            )
    yield from (name for name, _ in _export(FleetCollector(_status)))


def _queried(text: str) -> set[str]:
    return {_SUFFIX.sub("", name) for name in _NAME.findall(text)}


def test_alerts_dashboard_and_autoscaler_query_metrics_that_exist() -> None:
    defined = set(_defined())
    assert _queried(_AUTOSCALER.read_text()) <= defined
    dashboard = json.loads(_DASHBOARD.read_text())
    queries = [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    assert len(queries) > 20
    assert _queried("\n".join(queries)) <= defined
    assert _queried(re.sub(r"^ *#.*", "", _ALERTS.read_text(), flags=re.MULTILINE)) <= defined


def test_the_autoscaler_counts_shards_in_flight_and_keeps_a_worker_for_callbacks() -> None:
    query = " ".join(_AUTOSCALER.read_text().split())
    assert '199 * sum(imagefleet_in_flight{work="rows"})' in query
    assert 'clamp_max(sum(imagefleet_callbacks{state="waiting"}), 1)' in query


def test_every_metric_is_documented() -> None:
    assert set(_defined()) == _queried(_PAGE.read_text())


def test_the_exporter_says_what_redis_knows() -> None:
    exported = _export(FleetCollector(_status))
    assert exported["imagefleet_redis_up", ""] == 1
    assert exported["imagefleet_queue_messages", "m0 native jobs"] == 1
    assert exported["imagefleet_queue_oldest_seconds", "m0 native jobs"] == 2
    assert exported["imagefleet_in_flight", "jobs"] == 2
    assert exported["imagefleet_in_flight", "rows"] == 1
    assert exported["imagefleet_dead_letters_dropped_total", ""] == 10
    assert exported["imagefleet_workers", "ready"] == 1
    assert exported["imagefleet_workers", "lost"] == 0
    assert exported["imagefleet_callbacks", "given_up"] == 7
    assert exported["imagefleet_job_ends_total", "succeeded"] == 8
    assert exported["imagefleet_job_ends_total", "device_error failed"] == 9


def test_producers_cannot_make_series() -> None:
    exported = _export(FleetCollector(lambda: _status(queues=50)))
    series = [labels for name, labels in exported if name == "imagefleet_queue_messages"]
    assert sorted(series) == ["m0 native jobs", "other other other"]
    assert exported["imagefleet_queue_messages", "other other other"] == 49


def test_jobs_of_a_model_without_workers_have_an_age() -> None:
    exported = _export(FleetCollector(lambda: _status(queues=3)))
    assert exported["imagefleet_queue_oldest_seconds", "m0 native jobs"] == 2
    assert exported["imagefleet_queue_oldest_seconds", "other other other"] == 4


def test_without_redis_the_exporter_says_so() -> None:
    def read() -> FleetStatus:
        raise BrokerUnavailable("Redis at localhost does not answer")

    assert _export(FleetCollector(read)) == {("imagefleet_redis_up", ""): 0}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is missing")
@pytest.mark.parametrize(
    "command", [["check", "rules", str(_ALERTS)], ["check", "config", str(_CONFIG)]]
)
def test_promtool_accepts_the_files(command: list[str]) -> None:
    done = subprocess.run(["promtool", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
