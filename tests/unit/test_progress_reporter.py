"""How often progress is asked for and recorded, without Redis."""

import threading
from collections.abc import Sequence

import pytest

from imagefleet.shared.jobs.progress import AttemptVerdict, ProgressReport
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.devices.slots import Slot, slots_of
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs import progress
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt
from imagefleet.worker.jobs.progress import (
    ProgressReporter,
    cancel_check_interval_s,
    record_interval_s,
)

_LONG_S = 3600.0


class Records:
    """Keeps the reports, and answers each as it is told."""

    def __init__(self) -> None:
        self.reports: list[ProgressReport] = []
        self.answer = AttemptVerdict.GO_ON

    def record_progress(self, *reports: ProgressReport) -> Sequence[AttemptVerdict]:
        self.reports += reports
        return [self.answer] * len(reports)


def attempt(**request: object) -> Attempt:
    parsed = JobRequest.parse({"prompt": "a", "num_inference_steps": 8, **request})
    return plan_attempt("j", parsed, FakeEngine().info, token="w/1.0")


def reporter(records: Records) -> ProgressReporter:
    return ProgressReporter(records)  # type: ignore[arg-type]  # it needs no more of them


def at_step(work: Attempt, step: int) -> dict[Slot, int]:
    return dict.fromkeys(slots_of(work), step)


def test_a_job_is_not_asked_about_too_soon_after_its_start() -> None:
    records = Records()
    reporter(records).record_due(at_step(attempt(), 1), _LONG_S, _LONG_S)
    assert records.reports == []


def test_between_two_records_it_is_only_asked_whether_the_job_is_cancelled() -> None:
    records, work = Records(), attempt()
    reporter(records).record_due(at_step(work, 1), 0.0, _LONG_S)
    [report] = records.reports
    assert report.only_check
    assert work.step == 1
    records.answer = AttemptVerdict.CANCEL
    reporter(records).record_due(at_step(work, 2), 0.0, _LONG_S)
    assert work.ended


def test_a_step_is_recorded_when_the_last_record_is_old_enough() -> None:
    records, work = Records(), attempt()
    reporter(records).record(at_step(work, 3))
    [report] = records.reports
    assert (report.step, report.only_check) == (3, False)
    reporter(records).record_due(at_step(work, 4), 0.0, _LONG_S)
    assert records.reports[1].only_check


def test_a_callback_is_written_with_the_step_however_soon() -> None:
    records = Records()
    work = attempt(callback_url="https://hooks.example/", callback_events=["progress"])
    reporter(records).record_due(at_step(work, 2), 0.0, _LONG_S)
    [report] = records.reports
    assert report.callback is not None
    assert not report.only_check


def test_in_a_large_fleet_each_worker_asks_and_records_less_often() -> None:
    fleets = (1, 4, 6, 8, 1000)
    assert [cancel_check_interval_s(workers) for workers in fleets] == [1.0, 1.0, 1.5, 2.0, 2.0]
    assert [record_interval_s(workers) for workers in fleets] == [2.0, 2.0, 3.0, 4.0, 4.0]


def test_the_thread_asks_the_fleet_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    records, work = Records(), attempt()
    monkeypatch.setattr(progress, "MIN_INTERVAL_S", 0.01)
    asked = threading.Event()

    def record_due(_: object, check_after_s: float, record_after_s: float) -> None:
        assert (check_after_s, record_after_s) == (2.0, 4.0)
        asked.set()

    one = ProgressReporter(records, lambda: 8)  # type: ignore[arg-type]
    monkeypatch.setattr(one, "record_due", record_due)
    one.start()
    one.report(at_step(work, 1))
    assert asked.wait(60)
    one.stop()
