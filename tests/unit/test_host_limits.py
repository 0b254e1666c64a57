"""The doctor names each limit of a host, its platform or its Redis that is too small."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagefleet.shared.settings.doctor import Finding, Verdict
from imagefleet.worker.process.systemd import UnitLimits, read_unit_limits
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.host_limits import (
    check_allowed_networks,
    check_open_files,
    check_post_threads,
    check_stop,
    check_watchdog,
    judge_clients,
)

OK, WARNING, FAILURE = Verdict.OK, Verdict.WARNING, Verdict.FAILURE


def _settings(**given: Any) -> WorkerSettings:
    return WorkerSettings.load(**given)


def _check(findings: Iterator[Finding], verdict: Verdict | None, *words: str) -> None:
    """Check the one finding, or with None that there is none."""
    found = list(findings)
    assert [each.verdict for each in found] == ([] if verdict is None else [verdict])
    for word in words:
        assert word in found[0].text


@pytest.mark.parametrize(
    ("limit", "verdict", "words"),
    [
        (60, FAILURE, ["60 files may be open (ulimit -n", "need 122; allow"]),
        (128, WARNING, ["128 files may be open", "a worker may need "]),
        (1024, OK, ["1,024 files"]),
    ],
)
def test_the_limit_of_open_files(limit: int, verdict: Verdict, words: list[str]) -> None:
    _check(check_open_files(_settings(metrics_port=9464), limit), verdict, *words)


def test_the_limit_of_open_files_is_that_of_the_process() -> None:
    [finding] = check_open_files(_settings())
    assert "files may be open" in finding.text


@pytest.mark.parametrize(
    ("maxclients", "workers", "verdict", "words"),
    [
        (12, 1, FAILURE, ["maxclients 12, and 1 worker with", "up to 15 connections"]),
        (100, 10, FAILURE, ["maxclients 100, and 10 workers with"]),
        (110, 10, WARNING, ["up to 105 connections"]),
        (10_000, 10, None, []),
    ],
)
def test_the_connections_that_redis_accepts(
    maxclients: int, workers: int, verdict: Verdict | None, words: list[str]
) -> None:
    _check(judge_clients(maxclients, workers), verdict, *words)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("0.0.0.0/0", ["IMAGEFLEET_CALLBACK_ALLOW holds 0.0.0.0/0", "reach private hosts"]),
        ("::/0", ["holds ::/0"]),
        ("169.254.0.0/16", ["169.254.169.254"]),
        ("10.0.0.0/8,fc00::/7,127.0.0.1,hooks.internal", None),
        ("", None),
    ],
)
def test_networks_that_allow_every_host(entries: str, words: list[str] | None) -> None:
    findings = check_allowed_networks(_settings(callback_allow=entries))
    _check(findings, WARNING if words else None, *(words or []))


@pytest.mark.parametrize(
    ("threads", "capacity", "words"),
    [
        (4, 64, ["IMAGEFLEET_POST_THREADS=4", "64 images", "too few to fill", "192 or more"]),
        (100, 64, ["the devices wait for uploads"]),
        (512, 64, None),
    ],
)
def test_threads_for_a_full_batch(threads: int, capacity: int, words: list[str] | None) -> None:
    findings = check_post_threads(_settings(post_threads=threads), capacity)
    _check(findings, WARNING if words else None, *(words or []))


@pytest.mark.parametrize(
    ("drain", "told", "unit", "verdict", "words"),
    [
        (300, 45, None, FAILURE, ["DRAIN_S=300", "IMAGEFLEET_STOP_TIMEOUT_S=45", "kills"]),
        (300, None, 90, FAILURE, ["DRAIN_S=300", "TimeoutStopSec=90"]),
        (300, None, None, WARNING, ["DRAIN_S=300", "set IMAGEFLEET_STOP_TIMEOUT_S"]),
        (40, 45, None, WARNING, ["choose at least 50 s"]),
        (120, 135, 90, FAILURE, ["TimeoutStopSec=90"]),
        (120, 135, 135, OK, ["is enough"]),
        (25, None, None, None, []),
    ],
)
def test_the_time_of_a_drain(
    drain: float,
    told: float | None,
    unit: float | None,
    verdict: Verdict | None,
    words: list[str],
) -> None:
    settings = _settings(drain_s=drain, stop_timeout_s=told)
    _check(check_stop(settings, UnitLimits(stop_s=unit)), verdict, *words)


@pytest.mark.parametrize(
    ("watchdog", "lease", "verdict"),
    [
        (5, 20, FAILURE),
        (15, 20, WARNING),
        (60, 20, None),
        (60, 240, FAILURE),
        (None, 240, None),
    ],
)
def test_the_watchdog_of_systemd(
    watchdog: float | None, lease: float, verdict: Verdict | None
) -> None:
    words = [f"WatchdogSec={watchdog:g}", f"LEASE_S={lease:g}"] if watchdog and verdict else []
    limits = UnitLimits(watchdog_s=watchdog)
    _check(check_watchdog(_settings(lease_s=lease), limits), verdict, *words)


@pytest.mark.parametrize(
    ("answer", "limits"),
    [
        (
            "LoadState=loaded\nTimeoutStopUSec=2min 15s\nWatchdogUSec=500ms",
            UnitLimits(stop_s=135, watchdog_s=0.5),
        ),
        ("LoadState=loaded\nTimeoutStopUSec=infinity\nWatchdogUSec=0", UnitLimits()),
        ("LoadState=not-found\nTimeoutStopUSec=1min 30s\nWatchdogUSec=0", UnitLimits()),
        (None, UnitLimits()),
    ],
)
def test_the_limits_of_the_unit_are_those_that_systemd_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, limits: UnitLimits
) -> None:
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\nexit 1\n" if answer is None else f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert read_unit_limits() == limits
