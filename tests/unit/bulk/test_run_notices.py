"""Who waits for a run in a process gets the same events as a receiver of callbacks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagefleet.producer.bulk.run import BulkRun
from imagefleet.producer.bulk.run_notices import RunNotices
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.errors import DeviceError
from imagefleet.shared.jobs.model import State
from imagefleet.testing import FakeFleet

PROMPTS = [f"prompt {n}" for n in range(40)]


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with FakeFleet(auto=False) as fleet:
        yield fleet


@pytest.fixture
def run(fleet: FakeFleet, tmp_path: Path) -> BulkRun:
    hook = "https://hooks.example/x"
    return fleet.client.bulk([*PROMPTS, ""], tmp_path / "data", shard_size=10, callback_url=hook)


@pytest.fixture
def notices(run: BulkRun) -> RunNotices:
    return RunNotices(run, stalled_s=60)


@pytest.fixture
def queued(run: BulkRun) -> RunStatus:
    return run.status()


def _with(status: RunStatus, images: int, failed: int = 0, **shards: int) -> RunStatus:
    by_state = {**dict.fromkeys(State, 0), **{State(name): n for name, n in shards.items()}}
    changes = {"images": images, "failed_images": failed, "shards_by_state": by_state}
    return status.model_copy(update=changes)


def _ended(status: RunStatus, state: State, images: int) -> RunStatus:
    return status.model_copy(update={"state": state, "images": images})


def _kinds(events: Iterator[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(each["type"], each["data"]["progress"]) for each in events]


def test_start_tenths_and_end_are_one_event_each(notices: RunNotices, queued: RunStatus) -> None:
    seen = []
    for status in (
        queued,
        _with(queued, 0, queued=3, running=1),
        _with(queued, 3, queued=3, running=1),
        _with(queued, 3, 1, queued=3, running=1),
        _with(queued, 3, 1, queued=3, running=1),
        _with(queued, 21, 1, queued=2, running=2),
        _with(queued, 12, 1, queued=2, running=2),  # a shard is begun anew
        _with(queued, 22, 1, queued=2, running=2),
        _with(queued, 40, running=1, succeeded=3),
        _ended(queued, State.SUCCEEDED, 40),
    ):
        seen.append(_kinds(notices.of(status, 0.0)))
    assert seen == [
        [],
        [("run.started", 0)],
        [],
        [("run.progress", 10)],
        [],
        [("run.progress", 50)],
        [],
        [],
        [("run.progress", 90)],
        [("run.ended", 100)],
    ]


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
def test_a_run_that_has_ended_is_only_reported_as_ended(
    notices: RunNotices, queued: RunStatus, state: State
) -> None:
    [event] = notices.of(_ended(queued, state, 7), 1_000.0)
    data = event["data"]
    assert (event["type"], data["state"], data["progress"]) == ("run.ended", state.value, 10)


def test_a_stall_is_one_event_until_the_run_goes_on(notices: RunNotices, queued: RunStatus) -> None:
    waiting, running = queued, _with(queued, 3, queued=3, running=1)
    looks = [(waiting, 0), (waiting, 59), (waiting, 60), (waiting, 200), (running, 210)]
    looks += [(running, 269), (running, 271), (running, 400), (_with(queued, 4, running=1), 401)]
    looks += [(_with(queued, 4, running=1), 470)]
    seen = [
        (at, each["type"], each["data"].get("idle_s"))
        for s, at in looks
        for each in notices.of(s, at)
    ]
    assert seen == [
        (60, "run.stalled", 60),
        (210, "run.started", None),
        (271, "run.stalled", 61),
        (401, "run.progress", None),
        (470, "run.stalled", 69),
    ]


def test_the_last_event_says_what_the_callback_of_the_end_says(
    fleet: FakeFleet, run: BulkRun, notices: RunNotices
) -> None:
    fleet.run_all()
    [event] = notices.of(run.status(), 0.0)
    expected = next(each for each in fleet.callbacks() if each["type"] == "run.ended")
    assert event.keys() == expected.keys()
    assert event["data"] == {**expected["data"], "sequence": 1}
    assert list(event["data"]) == list(expected["data"])


def test_each_event_says_what_its_callback_says(
    fleet: FakeFleet, run: BulkRun, notices: RunNotices
) -> None:
    """Both count on their own: this process in Python, and for receivers a script in Redis."""
    with run.connection.runs(run.id) as records:
        changes: list[Callable[[], object]] = [
            lambda: None,
            lambda: records.begin(run.id, 0, "a", "host"),
            lambda: records.report_progress(run.id, 0, "a", "host", 2, 1),
            lambda: records.report_progress(run.id, 0, "a", "host", 3, 1),
            lambda: records.succeed(run.id, 0, "a", "host", 8, {"device_error": 2}),
            lambda: records.begin(run.id, 1, "b", "host"),
            lambda: records.fail(run.id, 1, "b", "host", 10, DeviceError("out of memory")),
            lambda: records.begin(run.id, 2, "c", "host"),
            lambda: records.report_progress(run.id, 2, "c", "host", 9, 0),
            lambda: records.cancel(run.id),
        ]
        seen: list[dict[str, Any]] = []
        for change in changes:
            change()
            seen += notices.of(run.status(), 0.0)
    told = sorted(fleet.callbacks(), key=lambda each: each["data"]["sequence"])
    kinds = [each["type"].removeprefix("run.") for each in told]
    assert kinds == ["started", *4 * ["progress"], "ended"]
    assert [(each["type"], each["data"]) for each in seen] == [
        (each["type"], each["data"]) for each in told
    ]
