"""Show the progress of a bulk run in the terminal.

Input: the statuses of a run. Output: counts, rates, workers and failure reasons. Only `watch`
prints; all other functions are pure.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.jobs.model import TERMINAL, State
from imagefleet.shared.text.printable import counted, mask_credentials, printable

_WINDOW_S: Final = 60.0
"""Rates are averages over the last minute. Without a terminal a line is printed as often."""
_NEWS_S: Final = 10.0
"""Without a terminal, two lines are at least this many seconds apart."""


class Rates:
    """Computes the rates of a run, in samples per second, from successive statuses."""

    def __init__(self, at: float, status: RunStatus) -> None:
        self._history = deque([(at, status)])

    def add(self, at: float, status: RunStatus) -> None:
        """Add a status that was read at `at` seconds."""
        self._history.append((at, status))
        while len(self._history) > 2 and at - self._history[0][0] > _WINDOW_S:
            self._history.popleft()

    @property
    def known(self) -> bool:
        """Return whether there is a rate: one status of a running run gives none."""
        return len(self._history) > 1 or self._history[-1][1].done

    @property
    def overall(self) -> float:
        """Return the rate of the run. For an ended run, finished samples of an earlier run, before
        a pause or a repair, do not count."""
        if self._history[-1][1].done:
            return self._rate(lambda status: sum(status.images_by_worker.values()))
        return self._rate(lambda status: status.images)

    def of_worker(self, worker: str) -> float:
        return self._rate(lambda status: status.images_by_worker.get(worker, 0))

    def seconds_left(self) -> float | None:
        """Return the estimated seconds to the end; None if there is no progress."""
        status = self._history[-1][1]
        if status.done or self.overall <= 0:
            return None
        return max(0, status.samples - status.images - status.failed_images) / self.overall

    def _rate(self, count: Callable[[RunStatus], int]) -> float:
        """Return the rate over the history; for an ended run, over the time since it was started or
        resumed."""
        (first_at, first), (last_at, last) = self._history[0], self._history[-1]
        if last.finished_at is not None:
            began_at = last.started_at if last.resumed_at is None else last.resumed_at
            return count(last) / max(last.finished_at - began_at, 1.0)
        return max(0, count(last) - count(first)) / max(last_at - first_at, 1e-9)


def watch(
    statuses: Iterator[RunStatus], console: Console, clock: Callable[[], float] = time.monotonic
) -> RunStatus:
    """Show each status of a run and return the last one.

    Without a terminal, print a line now and then, and the view at the end. Ctrl-C ends the view and
    not the run; the caller handles KeyboardInterrupt.
    """
    statuses = _without_falls(statuses)
    status = next(statuses)
    rates = Rates(clock(), status)
    if not console.is_terminal:
        status = _print_lines(status, statuses, rates, console, clock)
        console.print(render(status, rates))
        return status
    with Live(render(status, rates), console=console, auto_refresh=False) as live:
        for status in statuses:
            rates.add(clock(), status)
            live.update(render(status, rates), refresh=True)
    return status


def _without_falls(statuses: Iterator[RunStatus]) -> Iterator[RunStatus]:
    """Yield the statuses with a count of images that does not fall while the run is running: a
    shard that is begun anew counts fewer, and what it has lost is generated again."""
    images = 0
    for status in statuses:
        if status.done:
            yield status
            continue
        images = max(status.images, min(images, status.samples - status.failed_images))
        yield status.model_copy(update={"images": images})


def _print_lines(
    first: RunStatus,
    statuses: Iterator[RunStatus],
    rates: Rates,
    console: Console,
    clock: Callable[[], float],
) -> RunStatus:
    """Print a line each minute, and as soon as a shard has ended or there is another error, but at
    most one in ten seconds.

    Return the last status.
    """
    status = printed = first
    printed_at = clock()
    for status in statuses:
        now = clock()
        rates.add(now, status)
        has_news = _news(status) != _news(printed)
        if not status.done and now - printed_at >= (_NEWS_S if has_news else _WINDOW_S):
            console.print(_progress(status, rates), soft_wrap=True)
            printed, printed_at = status, now
    return status


def _news(status: RunStatus) -> tuple[int, tuple[str, ...]]:
    """Return the number of ended shards, and the codes of errors."""
    ended = sum(status.shards_by_state[state] for state in TERMINAL)
    return ended, tuple(each.code for each in status.errors)


def _progress(status: RunStatus, rates: Rates) -> Text:
    """Return one line with a time, for a log."""
    at = datetime.now(UTC).strftime("%H:%M:%SZ")
    counts = f"{at}  {_image_counts(status, rates)}; {_shard_counts(status)}"
    return Text("; ".join([counts, *error_lines(status)]))


def render(status: RunStatus, rates: Rates) -> RenderableType:
    """Return the view of one status."""
    ended = status.images + status.failed_images
    head = Text.assemble(
        (f"run {printable(status.id)} ", "bold"),
        (status.state.value, _COLOURS[status.state]),
        f"  {printable(mask_credentials(status.destination))}",
    )
    bar = Table.grid()
    bar.add_row(ProgressBar(total=max(1, status.samples), completed=ended, width=60))
    return Group(
        head,
        bar,
        Text(_image_counts(status, rates)),
        Text(_shard_counts(status)),
        *_workers(status, rates),
        *_reasons(status),
        *map(Text, error_lines(status)),
    )


def _image_counts(status: RunStatus, rates: Rates) -> str:
    counts = (
        f"{status.images:,} of {counted(status.samples, 'image')}, {status.failed_images:,} failed"
    )
    if not rates.known:
        return counts
    return f"{counts}   {rates.overall:.1f} images/s   {_time_left(status, rates)}".rstrip()


def _shard_counts(status: RunStatus) -> str:
    shards = status.shards_by_state
    counts = (
        f"{shards[State.SUCCEEDED]:,} of {counted(status.shards, 'shard')} done, "
        f"{shards[State.RUNNING]:,} running, {shards[State.QUEUED]:,} queued, "
        f"{shards[State.FAILED]:,} failed"
    )
    cancelled = shards[State.CANCELLED]
    return f"{counts}, {cancelled:,} cancelled" if cancelled else counts


def line(status: RunStatus) -> str:
    """Return one line about a run: id, state, images, failures, start and destination; and one for
    each error of whole shards."""
    started = datetime.fromtimestamp(status.started_at, UTC).isoformat(timespec="minutes")
    failed = f", {status.failed_images:,} failed" if status.failed_images else ""
    text = (
        f"{status.id}  {status.state.value:9}  {status.images:,} of "
        f"{counted(status.samples, 'image')}{failed}"
        f"  {started.removesuffix('+00:00')}Z  {mask_credentials(status.destination)}"
    )
    return "\n    ".join([text, *error_lines(status)])


def _workers(status: RunStatus, rates: Rates) -> list[RenderableType]:
    if not status.images_by_worker:
        return []
    images_column = "images" if status.resumed_at is None else "images since the run was resumed"
    table = Table("worker", images_column, "images/s", box=None, pad_edge=False)
    for worker, images in sorted(status.images_by_worker.items()):
        rate = f"{rates.of_worker(worker):.1f}" if rates.known else ""
        table.add_row(Text(printable(worker)), str(images), rate)
    return [table]


def _reasons(status: RunStatus) -> list[RenderableType]:
    if not status.failures_by_reason:
        return []
    table = Table("failure reason", "images", box=None, pad_edge=False)
    for reason, images in sorted(status.failures_by_reason.items()):
        table.add_row(Text(printable(reason)), str(images))
    return [table]


def error_lines(status: RunStatus) -> list[str]:
    """Return a line for each error of whole shards: code, shards, worker, time and message."""
    return [
        f"{each.code} of {counted(each.shards, 'shard')}, last on {each.worker} at "
        f"{datetime.fromtimestamp(each.at, UTC):%H:%M:%SZ}: {each.message}"
        for each in status.errors
    ]


def _time_left(status: RunStatus, rates: Rates) -> str:
    left = rates.seconds_left()
    if left is None:
        return ""
    minutes, seconds = divmod(round(left), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d} left"


_COLOURS: Final = {
    State.QUEUED: "dim",
    State.RUNNING: "cyan",
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.CANCELLED: "yellow",
}
