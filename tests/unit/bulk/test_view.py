"""The progress view of a run."""

import re
from io import StringIO
from typing import Any

from rich.console import Console

from imagefleet.producer.bulk.progress_view import Rates, line, render, watch
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.jobs.model import State


def _status(images: int, **changes: Any) -> RunStatus:
    fields: dict[str, Any] = {
        "id": "r",
        "destination": "file:///d/",
        "plan_digest": "d",
        "state": State.RUNNING,
        "model": None,
        "shards": 4,
        "samples": 400,
        "images": images,
        "failed_images": 2,
        "shards_by_state": dict.fromkeys(State, 1),
        "failures_by_reason": {"device_error": 2},
        "images_by_worker": {"one": images},
        "max_failures": None,
        "priority": 3,
        "started_at": 1_000.0,
        "finished_at": None,
    }
    return RunStatus.model_validate({**fields, **changes})


def _text(status: RunStatus, rates: Rates) -> str:
    console = Console(width=120, file=StringIO())
    with console.capture() as shown:
        console.print(render(status, rates))
    return shown.get()


def test_rates_and_the_time_left_come_from_the_last_minute() -> None:
    rates = Rates(0.0, _status(0))
    for second in (10, 100, 110):
        rates.add(float(second), _status(second * 2))
    assert (rates.overall, rates.of_worker("one"), rates.of_worker("nobody")) == (2.0, 2.0, 0.0)
    assert rates.seconds_left() == (400 - 220 - 2) / 2


def test_there_is_no_time_left_without_progress() -> None:
    assert Rates(0.0, _status(0)).seconds_left() is None


def test_an_ended_run_shows_its_average() -> None:
    ended = _status(398, state=State.SUCCEEDED, finished_at=1_199.0)
    rates = Rates(0.0, ended)
    assert (rates.overall, rates.of_worker("one")) == (2.0, 2.0)
    assert "2.0 images/s" in _text(ended, rates)


def test_the_average_of_a_resumed_run_leaves_out_the_pause_and_the_samples_before_it() -> None:
    ended = _status(
        398,
        state=State.SUCCEEDED,
        images_by_worker={"one": 20, "two": 10},
        resumed_at=9_000.0,
        finished_at=9_010.0,
    )
    rates = Rates(0.0, ended)
    assert (rates.overall, rates.of_worker("one")) == (3.0, 2.0)
    assert "images since the run was resumed" in _text(ended, rates)


def test_one_status_of_a_running_run_gives_no_rate() -> None:
    assert "images/s " not in _text(_status(200), Rates(0.0, _status(200)))


def test_the_view_shows_shards_workers_and_reasons() -> None:
    status = _status(200)
    shown = _text(status, Rates(0.0, status))
    for words in ("200 of 400 images, 2 failed", "1 of 4 shards done", "one", "device_error"):
        assert words in shown


def test_one_image_and_one_shard_are_not_plural() -> None:
    status = _status(1, samples=1, shards=1, failed_images=0)
    shown = _text(status, Rates(0.0, status))
    assert "1 of 1 image, 0 failed" in shown
    assert "1 of 1 shard done" in shown
    assert "  1 of 1 image  " in line(status)


def test_cancelled_shards_are_shown_if_there_are_any() -> None:
    none = _status(200, shards_by_state=dict.fromkeys(State, 1) | {State.CANCELLED: 0})
    assert "cancelled" not in _text(none, Rates(0.0, none))
    some = _status(200, shards_by_state=dict.fromkeys(State, 1) | {State.CANCELLED: 3})
    assert "1 failed, 3 cancelled" in _text(some, Rates(0.0, some))


def test_the_shown_count_does_not_fall_while_the_run_is_running() -> None:
    counts = [0, 308, 292, 300, 398]
    states = [*[State.RUNNING] * 4, State.SUCCEEDED]
    statuses = [_status(n, state=state) for n, state in zip(counts, states, strict=True)]
    times = iter([0.0, 0.0, 61.0, 122.0, 183.0, 244.0])
    piped = StringIO()
    last = watch(iter(statuses), Console(file=piped, width=200), lambda: next(times))
    shown = re.findall(r"([0-9]+) of 400 images", piped.getvalue())
    assert shown == ["308", "308", "308", "398"]
    assert last.images == 398


def test_the_view_and_its_lines_say_why_shards_were_left() -> None:
    error = {
        "code": "storage_denied",
        "message": "cannot store /d/00000.tar: the disk is full",
        "worker": "host-1:7:abc",
        "at": 1_700_000_000,
        "shards": 3,
    }
    failing = _status(200, errors=[error])
    sentence = (
        "storage_denied of 3 shards, last on host-1:7:abc at 22:13:20Z: cannot store /d/00000.tar: "
        "the disk is full"
    )
    assert sentence in " ".join(_text(failing, Rates(0.0, failing)).split())
    assert line(failing).splitlines()[1].strip() == sentence
    times = iter([0.0, 0.0, 11.0, 22.0])
    piped = StringIO()
    ended = _status(398, state=State.SUCCEEDED)
    watch(iter([_status(0), failing, ended]), Console(file=piped, width=40), lambda: next(times))
    assert piped.getvalue().splitlines()[0].endswith(f"; {sentence}")


def test_the_output_ends_with_one_newline_without_a_terminal() -> None:
    piped = StringIO()
    watch(iter([_status(0), _status(398, state=State.SUCCEEDED)]), Console(file=piped))
    assert piped.getvalue().endswith("\n")
    assert not piped.getvalue().endswith("\n\n")


def test_without_a_terminal_a_line_is_printed_each_minute_and_for_ended_shards() -> None:
    def ended(shards: int) -> dict[State, int]:
        return dict.fromkeys(State, 0) | {State.SUCCEEDED: shards}

    def status(shards: int, **changes: Any) -> RunStatus:
        return _status(100 * shards, failed_images=0, shards_by_state=ended(shards), **changes)

    times = iter([0.0, 0.0, 5.0, 12.0, 20.0, 40.0, 99.0, 100.0, 101.0])
    statuses = [status(0), status(1), status(1), status(2), status(2), status(2), status(2)]
    statuses.append(status(4, state=State.SUCCEEDED, finished_at=1_100.0))
    piped = StringIO()
    last = watch(iter(statuses), Console(file=piped, width=40), lambda: next(times))
    assert last.state is State.SUCCEEDED
    lines = piped.getvalue().splitlines()
    progress = [each.partition("Z  ")[2] for each in lines if "Z  " in each]
    assert [each.partition(",")[0] for each in progress] == [
        "100 of 400 images",  # a shard had ended at 5 s, which was too early
        "200 of 400 images",  # at 40 s: the next one had ended at 20 s
        "200 of 400 images",  # a minute later
    ]
    assert progress[0].endswith("; 1 of 4 shards done, 0 running, 0 queued, 0 failed")
    assert lines[len(progress)].startswith("run r succeeded")
