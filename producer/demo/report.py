"""Print the demo's progress line and its final report. Input: job statuses. Output: text."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.text.printable import printable


class Progress:
    """The line shows, live, the waiting, running and finished jobs, and images/s."""

    def __init__(self, console: Console, total: int) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._total = total
        self._started = time.monotonic()
        self._first_step: float | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if not self._live.console.is_terminal:
            self._live.console.print()  # Live ends its line only on a terminal

    def show(self, statuses: Sequence[JobStatus]) -> None:
        """Update the line."""
        states = Counter(status.state for status in statuses)
        done = sum(1 for status in statuses if status.done)
        now = time.monotonic()
        line = Text.assemble(
            ("waiting ", "dim"),
            (f"{states[State.QUEUED]:3d}   ", "yellow"),
            ("running ", "dim"),
            (f"{states[State.RUNNING]:3d}{_least_step(statuses):14}", "cyan"),
            ("done ", "dim"),
            (f"{done:3d} of {self._total}   ", "green"),
        )
        if states[State.QUEUED] < self._total:
            self._first_step = self._first_step or now
            images = sum(len(status.result.images) for status in statuses if status.result)
            line.append(f"{images / max(now - self._first_step, 1e-3):5.2f} images/s")
        else:
            line.append(f"worker loads and compiles … {now - self._started:.0f} s", "dim")
        if states[State.FAILED]:
            line.append(f"   failed {states[State.FAILED]}", "bold red")
        self._live.update(line)


def print_report(
    console: Console,
    statuses: Sequence[JobStatus],
    durations: dict[str, float],
    callbacks: Counter[str],
    refused: int,
    sheet: Path | None,
    out: Path,
) -> None:
    """Print the seconds per stage, failed jobs, callbacks, and the paths of the files."""
    console.print(_stage_table(statuses, durations))
    for status in statuses:
        if status.error is not None:
            message = printable(status.error.message)
            console.print(Text.assemble((f"{status.id} failed:", "red"), f" {message}"))
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(callbacks.items()))
    console.print(f"callbacks received: {kinds or 'none'}; signatures refused: {refused}")
    console.print(f"images and metadata: {out}/jobs", soft_wrap=True)
    if sheet is not None:
        console.print(f"contact sheet: {sheet}", soft_wrap=True)


def _stage_table(statuses: Sequence[JobStatus], durations: dict[str, float]) -> Table:
    table = Table(title="seconds per stage", title_justify="left", box=None, padding=(0, 2))
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    table.add_column("longest job", justify="right")
    results = [status.result for status in statuses if status.result is not None]
    for stage, seconds in durations.items():
        table.add_row(stage, f"{seconds:.2f}", "")
    for stage in ("waited", "denoise", "encode", "upload"):
        spent = [result.timings.get(stage, 0.0) for result in results] or [0.0]
        mean = sum(spent) / len(spent)
        table.add_row(f"  {stage}, mean of jobs", f"{mean:.3f}", f"{max(spent):.3f}")
    return table


def _least_step(statuses: Sequence[JobStatus]) -> str:
    running = [status for status in statuses if status.state is State.RUNNING and status.steps]
    if not running:
        return ""
    least = min(running, key=lambda status: status.step)
    return f" (step {least.step}/{least.steps})"
