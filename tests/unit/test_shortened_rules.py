"""`make alerts` shortens the times of the shipped rules, and nothing else of them."""

import re
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.alerts.causes import CAUSES
from tests.alerts.shortened_rules import shorten
from tests.support.processes import ROOT

_RULES = ROOT / "deploy/prometheus/alerts.yml"
_TIME = re.compile(r"\[\d+[smhd]\]|_seconds(\{[^}]*\})?\) > \d+")


def _shipped() -> list[Any]:
    [group] = YAML(typ="safe").load(_RULES)["groups"]
    return list(group["rules"])


def test_only_times_change() -> None:
    rules = shorten(_RULES, 30)
    [group] = rules.rules["groups"]
    assert rules.alerts() == [rule["alert"] for rule in _shipped()]
    for shipped, shorter in zip(_shipped(), group["rules"], strict=True):
        same = {**shipped, "expr": "", "for": ""}
        assert {**shorter, "expr": "", "for": ""} == same
        assert _TIME.sub("", shorter["expr"]) == _TIME.sub("", shipped["expr"])


def test_each_change_is_listed() -> None:
    changes = shorten(_RULES, 30).changes
    assert changes["ImagefleetQueueOld"] == ["for 10m → 20s", "> 3600s → > 120s"]
    assert changes["ImagefleetDatasetIdle"] == ["for 5m → 10s", "> 1800s → > 60s"]
    assert changes["ImagefleetWorkerRestarts"] == ["[1h] → [120s]"]
    assert changes["ImagefleetRecompiles"] == []


def test_a_factor_that_leaves_less_than_a_scrape_is_refused() -> None:
    with pytest.raises(AssertionError, match="too short"):
        shorten(_RULES, 1_000)


def test_each_alert_has_a_cause() -> None:
    provoked = {alert for cause in CAUSES for alert in cause.alerts}
    assert provoked == {rule["alert"] for rule in _shipped()}
