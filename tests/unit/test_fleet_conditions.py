"""The conditions that a page shows are those of the alert rules: names, thresholds and times."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from ruamel.yaml import YAML

from imagefleet.producer.fleet.conditions import RULES, conditions_of
from imagefleet.producer.fleet.recent_events import RecentEvents
from imagefleet.producer.fleet.snapshot import FleetSnapshot
from imagefleet.shared.jobs.fleet_status import FleetStatus, QueueStatus
from imagefleet.shared.jobs.membership import HostDifference
from imagefleet.shared.jobs.worker_status import Trait, WorkerState, WorkerStatus
from imagefleet.shared.redis_client.memory import RedisMemory
from tests.support.processes import ROOT

_OF_OTHER_METRICS: Final = {
    *("ImagefleetRedisDown", "ImagefleetExporterMissing", "ImagefleetTargetDown"),
    *("ImagefleetLeasesLost", "ImagefleetWorkerRestarts", "ImagefleetUploadsFail"),
    *("ImagefleetDevicesIdle", "ImagefleetDeviceMemory", "ImagefleetRecompiles"),
    *("ImagefleetGatewayNotReady", "ImagefleetGatewayErrors"),
}
"""These alerts need the metrics of worker or gateway processes, or say that there are none."""
_SECONDS: Final = {"m": 60, "h": 3_600}


def _alerts() -> Mapping[str, Any]:
    rules = YAML(typ="safe").load(ROOT / "deploy/prometheus/alerts.yml")
    return {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}


def _seconds(text: str) -> int:
    return int(text[:-1]) * _SECONDS[text[-1]]


def test_every_alert_that_redis_can_judge_has_a_rule() -> None:
    assert {rule.name for rule in RULES} | _OF_OTHER_METRICS == set(_alerts())
    runbook = (ROOT / "docs/runbook.md").read_text()
    assert all(f"`{rule.name}`" in runbook for rule in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_has_the_numbers_of_its_alert(rule: Any) -> None:
    alert = _alerts()[rule.name]
    assert alert["labels"]["severity"] == rule.severity
    assert _seconds(alert.get("for", "0m")) == rule.for_s
    numbers = {float(text) for text in re.findall(r"> ([0-9.]+)", alert["expr"])}
    assert numbers - {0.0} == set(rule.above) - {0}
    windows = {_seconds(text) for text in re.findall(r"\[(\d+[mh])\]", alert["expr"])}
    assert windows == ({rule.within_s} if rule.within_s else windows & {1_800})


def _worker(state: WorkerState = WorkerState.READY, model: str = "m") -> WorkerStatus:
    return WorkerStatus(worker=f"{state}:1:a", state=state, model=model, shapes=("64x64",))


def _queue(model: str = "m", shape: str = "native", oldest_s: float = 5.0) -> QueueStatus:
    return QueueStatus(
        model=model, shape=shape, datasets=False, waiting=2, tenants=1, oldest_s=oldest_s
    )


HEALTHY: Final = FleetSnapshot(
    status=FleetStatus(
        workers=(_worker(),),
        queues=(_queue(),),
        waiting=2,
        in_flight=1,
        in_flight_shards=0,
        delayed=0,
        dead_letters=3,
        dead_letters_dropped=0,
        callbacks=1_000,
        callbacks_given_up=9,
        job_ends={"failed:worker_error": 100},
    ),
    memory=RedisMemory(used=80, limit=100, is_bounded=True),
    dataset_idle_s=1_800.0,
)
QUIET: Final = RecentEvents(ends={"succeeded": 95, "failed:worker_error": 5})


def _with(**status: Any) -> FleetSnapshot:
    return replace(HEALTHY, status=HEALTHY.status.model_copy(update=status))


def _names(snapshot: FleetSnapshot = HEALTHY, recent: RecentEvents = QUIET) -> list[str]:
    found = conditions_of(snapshot, recent)
    return [each.name.removeprefix("Imagefleet") for each in found]


def test_nothing_is_wrong_at_the_thresholds() -> None:
    assert _names() == []
    assert _names(_with(queues=(_queue(oldest_s=3_600.0),))) == []
    assert _names(_with(workers=(), queues=(), in_flight=0)) == []
    assert _names(replace(HEALTHY, memory=None)) == []


def test_memory_is_a_page_once_redis_is_almost_full() -> None:
    assert _names(replace(HEALTHY, memory=RedisMemory(81, 100, True))) == ["RedisMemory"]
    assert _names(replace(HEALTHY, memory=RedisMemory(96, 100, True))) == [
        "RedisFull",
        "RedisMemory",
    ]


def test_work_without_workers_is_a_page() -> None:
    lost = _with(workers=(_worker(WorkerState.LOST),))
    assert _names(lost) == ["NoWorker", "ModelWithoutWorker", "WorkersLost"]
    assert _names(_with(workers=(_worker(WorkerState.QUARANTINED),), queues=())) == [
        "NoWorker",
        "WorkerQuarantined",
    ]
    [condition] = conditions_of(_with(workers=(), queues=(), in_flight=0, delayed=3), QUIET)
    assert condition.severity == "page"
    assert "3 messages" in condition.text


@pytest.mark.parametrize(
    ("model", "shape"), [("other", "native"), ("m", "512x512"), ("m", "512x64")]
)
def test_a_queue_that_nobody_serves_is_named(model: str, shape: str) -> None:
    [condition] = conditions_of(_with(queues=(_queue(model, shape, 9e9),)), QUIET)
    assert condition.name == "ImagefleetModelWithoutWorker"
    assert model in condition.text
    assert shape in condition.text


def test_an_old_queue_an_idle_dataset_and_waiting_callbacks_are_named() -> None:
    assert _names(_with(queues=(_queue(oldest_s=3_601.0),))) == ["QueueOld"]
    assert _names(replace(HEALTHY, dataset_idle_s=1_801.0)) == ["DatasetIdle"]
    assert _names(_with(callbacks=1_001)) == ["CallbacksPileUp"]


def test_hosts_that_differ_are_named_unless_they_may() -> None:
    def differing(*, allowed: bool) -> FleetSnapshot:
        difference = HostDifference(
            worker="a:1:b",
            trait=Trait.STORE,
            value="x",
            usual="y",
            allowed=allowed,
            usual_workers=1,
        )
        return _with(differences=(difference,))

    assert _names(differing(allowed=False)) == ["HostsDiffer"]
    assert _names(differing(allowed=True)) == []


def test_failing_jobs_are_named_by_their_code() -> None:
    many = RecentEvents(ends={"succeeded": 94, "failed:expired": 6, "failed:worker_error": 5})
    [condition] = conditions_of(HEALTHY, many)
    assert (condition.name, "expired" in condition.text) == ("ImagefleetJobsFail", True)
    assert _names(recent=RecentEvents(ends={"succeeded": 114, "failed:expired": 6})) == []
    assert _names(recent=RecentEvents(ends={"failed:expired": 5})) == []


def test_what_was_given_up_lately_is_named() -> None:
    assert _names(recent=RecentEvents(dead_letters=1)) == ["DeadLetters"]
    assert _names(recent=RecentEvents(callbacks_given_up=1)) == ["CallbacksGivenUp"]
