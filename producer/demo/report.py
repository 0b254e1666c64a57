"""What the demo shows while it runs and when it is done."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from imagefleet.shared.jobs.model import JobStatus, State


class Progress:
    """One live line: waiting, running, done, images/s."""

    def __init__(self, console: Console, total: int) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._total = total
        self._started = time.monotonic()
        self._first_step: float | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
        if not self._live.console.is_terminal:
            self._live.console.print()  # Live ends its line only on a terminal

    def show(self, found: Sequence[JobStatus]) -> None:
        states = Counter(status.state for status in found)
        done = sum(1 for status in found if status.done)
        now = time.monotonic()
        line = Text.assemble(
            ("waiting ", "dim"),
            (f"{states[State.QUEUED]:3d}   ", "yellow"),
            ("running ", "dim"),
            (f"{states[State.RUNNING]:3d}{_step(found):14}", "cyan"),
            ("done ", "dim"),
            (f"{done:3d} of {self._total}   ", "green"),
        )
        if states[State.QUEUED] < self._total:
            self._first_step = self._first_step or now
            images = sum(len(status.result.images) for status in found if status.result)
            line.append(f"{images / max(now - self._first_step, 1e-3):5.2f} images/s")
        else:
            line.append(f"worker loads and compiles … {now - self._started:.0f} s", "dim")
        if states[State.FAILED]:
            line.append(f"   failed {states[State.FAILED]}", "bold red")
        self._live.update(line)


def print_report(
    console: Console,
    finished: Sequence[JobStatus],
    clock: dict[str, float],
    callbacks: Counter[str],
    refused: int,
    sheet: Path | None,
    out: Path,
) -> None:
    """Stages, callbacks, failures, and where everything is."""
    console.print(_stages(finished, clock))
    for status in finished:
        if status.error is not None:
            console.print(f"[red]{status.id} failed:[/red] {status.error.message}")
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(callbacks.items()))
    console.print(f"callbacks received: {kinds or 'none'}; signatures refused: {refused}")
    console.print(f"pictures and metadata: {out}/jobs", soft_wrap=True)
    if sheet is not None:
        console.print(f"contact sheet: {sheet}", soft_wrap=True)


def _stages(finished: Sequence[JobStatus], clock: dict[str, float]) -> Table:
    table = Table(title="what each stage took", title_justify="left", box=None, padding=(0, 2))
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    table.add_column("a job, longest", justify="right")
    results = [status.result for status in finished if status.result is not None]
    for stage, seconds in clock.items():
        table.add_row(stage, f"{seconds:.2f}", "")
    for stage in ("waited", "denoise", "encode", "upload"):
        spent = [result.timings.get(stage, 0.0) for result in results] or [0.0]
        mean = sum(spent) / len(spent)
        table.add_row(f"  {stage}, mean of jobs", f"{mean:.3f}", f"{max(spent):.3f}")
    return table


def _step(found: Sequence[JobStatus]) -> str:
    running = [status for status in found if status.state is State.RUNNING and status.steps]
    if not running:
        return ""
    least = min(running, key=lambda status: status.step)
    return f" (step {least.step}/{least.steps})"
