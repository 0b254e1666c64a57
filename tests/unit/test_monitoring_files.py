"""The alerts, the dashboard and the documentation name the metrics that exist, and no others."""

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from ruamel.yaml import YAML

from imagefleet.producer.fleet.metrics import FAILURE_CODES, FleetCollector
from imagefleet.producer.fleet.snapshot import FleetSnapshot
from imagefleet.producer.gateway.web import metrics as gateway_metrics
from imagefleet.shared.errors import BrokerUnavailable
from imagefleet.shared.jobs.fleet_label import FleetLabel
from imagefleet.shared.jobs.fleet_status import FleetStatus, QueueStatus
from imagefleet.shared.jobs.membership import HostDifference
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.worker_status import Trait, WorkerState, WorkerStatus
from imagefleet.shared.redis_client.memory import RedisMemory
from imagefleet.worker.process import metrics
from tests.support.processes import ROOT
from tools.prometheus_rule import RULE, rule_file

_ALERTS = ROOT / "deploy/prometheus/alerts.yml"
_CONFIG = ROOT / "deploy/prometheus/prometheus.yml"
_AUTOSCALER = ROOT / "deploy/kubernetes/autoscale/scaled-object.yaml"
_DASHBOARD = ROOT / "deploy/grafana/imagefleet.json"
_CASES = ROOT / "tests/fixtures/alerts/alerts_test.yml"
_PAGE = ROOT / "docs/operations.md"
_RUNBOOK = ROOT / "docs/runbook.md"
_NAME = re.compile(r"\bimagefleet_[a-z_]+\b")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def _queue(number: int, shape: str = "native", *, datasets: bool = False) -> QueueStatus:
    return QueueStatus(
        model=f"m{number}",
        shape=shape,
        datasets=datasets,
        waiting=1,
        tenants=1,
        oldest_s=None if datasets else 2.0 + number,
    )


def _offer(model: str) -> Offer:
    return Offer(
        model=model,
        digest="",
        shapes=((512, 512), (768, 512)),
        schedulers=("ddim",),
        max_num_inference_steps=100,
        num_inference_steps=50,
        guidance_scale=7.5,
        scheduler="ddim",
    )


def _snapshot(
    *queues: QueueStatus, workers: int = 1, offers: Collection[str] = ()
) -> FleetSnapshot:
    worker = WorkerStatus(worker="w", state=WorkerState.READY, model="m0")
    return FleetSnapshot(
        status=_status(queues or (_queue(0),), (worker,) * workers),
        offers={model: _offer(model) for model in offers},
        memory=RedisMemory(used=80, limit=100, is_bounded=True),
        lanes=2,
        dataset_idle_s=12.0,
    )


def _status(queues: Sequence[QueueStatus], workers: tuple[WorkerStatus, ...]) -> FleetStatus:
    return FleetStatus(
        workers=workers,
        queues=tuple(queues),
        waiting=len(queues),
        in_flight=3,
        in_flight_shards=1,
        delayed=4,
        dead_letters=5,
        dead_letters_dropped=10,
        callbacks=6,
        callbacks_given_up=7,
        job_ends={"succeeded": 8, "failed:device_error": 9},
        failures={"host-a": {"device_error": 11}},
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
    of_processes = [*vars(metrics).values(), *vars(gateway_metrics).values()]
    for metric in (each for each in of_processes if isinstance(each, kinds)):
        for family in metric.collect():
            yield {"counter": f"{family.name}_total", "info": f"{family.name}_info"}.get(
                family.type, family.name
            )
    yield from (name for name, _ in _export(FleetCollector(_snapshot)))


def _queried(text: str) -> set[str]:
    return {_SUFFIX.sub("", name) for name in _NAME.findall(text)}


def _dashboard_queries() -> list[str]:
    dashboard = json.loads(_DASHBOARD.read_text())
    return [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]


def test_alerts_dashboard_and_autoscaler_query_metrics_that_exist() -> None:
    defined = set(_defined())
    assert _queried(_AUTOSCALER.read_text()) <= defined
    queries = _dashboard_queries()
    assert len(queries) > 20
    assert _queried("\n".join(queries)) <= defined
    assert _queried("\n".join(rule["expr"] for rule in _rules())) <= defined


def test_the_dashboard_shows_the_fleets_that_are_chosen() -> None:
    queries = "\n".join(_dashboard_queries())
    selectors = re.findall(r"\bimagefleet_[a-z_]+\b(\{fleet=~\"\$fleet\")?", queries)
    assert all(selectors)
    dashboard = json.loads(_DASHBOARD.read_text())
    assert "fleet" in [each["name"] for each in dashboard["templating"]["list"]]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_prometheus_operator_gets_the_same_alerts() -> None:
    assert RULE.read_text() == rule_file()  # otherwise run `make docs`
    rules = YAML(typ="safe").load(RULE)
    assert rules["kind"] == "PrometheusRule"
    assert rules["spec"] == YAML(typ="safe").load(_ALERTS)


_FLEET = 'fleet="imagefleet"'


def _autoscaler_query() -> str:
    [trigger] = YAML(typ="safe").load(_AUTOSCALER)["spec"]["triggers"]
    query: str = trigger["metadata"]["query"]
    return query


def test_the_autoscaler_counts_shards_in_flight_and_keeps_a_worker_for_callbacks() -> None:
    query = _autoscaler_query()
    assert f'199 * sum(imagefleet_in_flight{{{_FLEET},work="rows"}})' in query
    assert f'clamp_max(sum(imagefleet_callbacks{{{_FLEET},state="waiting"}}), 1)' in query


def test_the_autoscaler_counts_what_somebody_offers_in_its_own_fleet() -> None:
    selectors = re.findall(r"imagefleet_[a-z_]+(\{[^}]*\})?", _autoscaler_query())
    assert all(_FLEET in selector for selector in selectors)
    waiting = re.findall(r"imagefleet_queue_messages(\{[^}]*\})", _autoscaler_query())
    assert len(waiting) == 2
    assert all('model!="other",shape!="other"' in selector for selector in waiting)


def test_every_metric_is_documented() -> None:
    assert set(_defined()) == _queried(_PAGE.read_text())


def test_the_exporter_says_what_redis_knows() -> None:
    exported = _export(FleetCollector(_snapshot))
    assert exported["imagefleet_redis_up", ""] == 1
    assert exported["imagefleet_lane_up", "1"] == 1
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
    assert exported["imagefleet_host_failures", "device_error host-a"] == 11
    assert exported["imagefleet_redis_memory_bytes", "used"] == 80
    assert exported["imagefleet_redis_memory_bytes", "limit"] == 100
    assert exported["imagefleet_dataset_idle_seconds", ""] == 12


@pytest.mark.parametrize(("allowed", "counted"), [(False, 1), (True, 0)])
def test_the_exporter_counts_workers_that_differ_and_may_not(allowed: bool, counted: int) -> None:
    exported = _export(FleetCollector(_snapshot))
    assert exported["imagefleet_differing_workers", "model"] == 0
    difference = HostDifference(
        worker="w", trait=Trait.STORE, value="a", usual="b", usual_workers=2, allowed=allowed
    )
    status = _snapshot().status.model_copy(update={"differences": (difference,)})
    exported = _export(FleetCollector(lambda: replace(_snapshot(), status=status)))
    assert exported["imagefleet_differing_workers", "store"] == counted


def test_each_end_has_a_series_before_there_is_one() -> None:
    exported = _export(FleetCollector(_snapshot))
    ends = {labels for name, labels in exported if name == "imagefleet_job_ends_total"}
    assert ends == {"succeeded", "cancelled", *(f"{code} failed" for code in FAILURE_CODES)}
    assert exported["imagefleet_job_ends_total", "expired failed"] == 0


def test_the_client_page_explains_each_code_with_which_a_job_fails() -> None:
    page = (ROOT / "docs/client.md").read_text()
    assert [code for code in FAILURE_CODES if f"`{code}`" not in page] == []


def test_producers_cannot_make_series() -> None:
    queues = [_queue(number) for number in range(50)] + [_queue(0, "9x9"), _queue(0, "8x8")]
    exported = _export(FleetCollector(lambda: _snapshot(*queues)))
    series = {labels for name, labels in exported if name == "imagefleet_queue_messages"}
    assert series == {
        *(f"{model} native {work}" for model in ("default", "m0") for work in ("jobs", "rows")),
        *("m0 other jobs", "other other jobs", "other other rows"),
    }
    assert exported["imagefleet_queue_messages", "other other jobs"] == 49
    assert exported["imagefleet_queue_messages", "m0 other jobs"] == 2


def test_jobs_that_nobody_offers_have_an_age() -> None:
    queues = [_queue(number) for number in range(3)]
    exported = _export(FleetCollector(lambda: _snapshot(*queues)))
    assert exported["imagefleet_queue_oldest_seconds", "m0 native jobs"] == 2
    assert exported["imagefleet_queue_oldest_seconds", "other other jobs"] == 4


def test_a_model_keeps_its_labels_when_its_workers_leave() -> None:
    queues = [_queue(1, "768x512"), _queue(1, "512x512", datasets=True), _queue(2, datasets=True)]
    exported = _export(FleetCollector(lambda: _snapshot(*queues, workers=0, offers=["m1"])))
    assert exported["imagefleet_queue_messages", "m1 768x512 jobs"] == 1
    assert exported["imagefleet_queue_messages", "m1 512x512 rows"] == 1
    assert exported["imagefleet_queue_messages", "other other rows"] == 1
    assert exported["imagefleet_ready_workers", "m1"] == 0


def test_a_model_that_was_declared_has_labels_before_its_first_worker() -> None:
    collector = FleetCollector(lambda: _snapshot(_queue(7), workers=0), {"m7"})
    assert _export(collector)["imagefleet_queue_messages", "m7 native jobs"] == 1


def test_jobs_that_name_no_model_are_made_by_the_workers_of_its_default() -> None:
    snapshot = _snapshot(workers=2)
    assert _export(FleetCollector(lambda: snapshot))["imagefleet_ready_workers", "default"] == 2
    snapshot = replace(snapshot, offers={"default": _offer("m1")})
    exported = _export(FleetCollector(lambda: snapshot))
    assert exported["imagefleet_ready_workers", "default"] == 0
    assert exported["imagefleet_ready_workers", "m0"] == 2


def test_each_sample_names_its_fleet() -> None:
    registry = CollectorRegistry()
    registry.register(FleetLabel(FleetCollector(_snapshot), "images-2"))
    page = generate_latest(registry).decode()
    families = text_string_to_metric_families(page)
    fleets = [each.labels["fleet"] for family in families for each in family.samples]
    assert len(fleets) > 30
    assert set(fleets) == {"images-2"}


def test_without_redis_the_exporter_says_so() -> None:
    def read() -> FleetSnapshot:
        raise BrokerUnavailable("Redis at localhost does not answer")

    assert _export(FleetCollector(read)) == {("imagefleet_redis_up", ""): 0}


_needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Prometheus) is missing"
)


@_needs_promtool
@pytest.mark.parametrize(
    "command", [["check", "rules", str(_ALERTS)], ["check", "config", str(_CONFIG)]]
)
def test_promtool_accepts_the_files(command: list[str]) -> None:
    done = subprocess.run(["promtool", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@_needs_promtool
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    rules = YAML(typ="safe").load(_ALERTS)
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]  # they are prose, which the cases need not repeat
    (tmp_path / "alerts.yml").write_text(json.dumps(rules))
    cases = shutil.copy(_CASES, tmp_path)
    done = subprocess.run(["promtool", "test", "rules", cases], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@_needs_promtool
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param({}, 0, id="nothing waits"),
        pytest.param(
            {'queue_messages{%s,model="m",shape="native",work="rows"}': 1}, 200, id="shard"
        ),
        pytest.param({'in_flight{%s,work="rows"}': 2}, 400, id="shards in flight"),
        pytest.param({'queue_messages{%s,model="m",shape="native",work="jobs"}': 9}, 9, id="jobs"),
        pytest.param(
            {'queue_messages{%s,model="other",shape="other",work="rows"}': 9}, 0, id="other"
        ),
        pytest.param({'callbacks{%s,state="waiting"}': 70}, 1, id="callbacks"),
        pytest.param(
            {'queue_messages{fleet="b",model="m",shape="native",work="jobs"}': 9}, 0, id="b"
        ),
    ],
)
def test_the_autoscaler_counts_work(tmp_path: Path, changed: dict[str, int], expected: int) -> None:
    values = {
        'queue_messages{%s,model="m",shape="native",work="jobs"}': 0,
        'queue_messages{%s,model="m",shape="native",work="rows"}': 0,
        'in_flight{%s,work="jobs"}': 0,
        'in_flight{%s,work="rows"}': 0,
        "delayed{%s}": 0,
        'callbacks{%s,state="waiting"}': 0,
        **changed,
    }
    series = [
        {"series": f"imagefleet_{name.replace('%s', _FLEET)}", "values": f"{value}x5"}
        for name, value in values.items()
    ]
    answer = {"expr": _autoscaler_query(), "eval_time": "2m", "exp_samples": [{"value": expected}]}
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [answer]}
    (tmp_path / "cases.yml").write_text(json.dumps({"tests": [case]}))
    command = ["promtool", "test", "rules", str(tmp_path / "cases.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case() -> None:
    tested = set(re.findall(r"alertname: (\w+)", _CASES.read_text()))
    assert {rule["alert"] for rule in _rules()} - tested == {"ImagefleetTargetDown"}


def test_what_one_prometheus_says_of_several_fleets_is_kept_apart() -> None:
    for rule in _rules():
        aggregations = re.findall(r"\b(?:sum|max|avg|min|group|count)\b(.{0,12})", rule["expr"])
        assert all(each.startswith(" by (fleet") for each in aggregations), rule["alert"]


def _rules() -> list[Any]:
    [group] = YAML(typ="safe").load(_ALERTS)["groups"]
    rules: list[Any] = group["rules"]
    return rules


def test_the_runbook_has_a_row_for_each_alert_and_each_code() -> None:
    page = _RUNBOOK.read_text()
    rows = re.findall(r"^\| (?:`\w+`, )*`(\w+)`", page, re.MULTILINE)
    assert {rule["alert"] for rule in _rules()} <= set(rows)
    assert set(FAILURE_CODES) <= set(rows)
    pages = set(re.findall(r"^\| `(\w+)` \(page\) \|", page, re.MULTILINE))
    assert pages == {rule["alert"] for rule in _rules() if rule["labels"]["severity"] == "page"}
