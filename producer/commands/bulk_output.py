"""Print bulk runs: their progress, their rejected and failed rows, and what they would make."""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Final, NoReturn

from imagefleet.producer.bulk.dry_run import DryRun
from imagefleet.producer.bulk.progress_view import error_lines, watch
from imagefleet.producer.bulk.rejected import describe_rejected
from imagefleet.producer.bulk.run import BulkRun, last_or_raise
from imagefleet.producer.commands.output import echo, echo_json, format_duration, make_console
from imagefleet.producer.connection.outages import deadline_of
from imagefleet.shared.bulk.records import RunStatus
from imagefleet.shared.jobs.model import State
from imagefleet.shared.text.printable import counted

MAX_LISTED_ROWS: Final = 20
"""Maximum rows that are printed one by one; files in the destination list all of them."""

EXIT_INCOMPLETE: Final = 3
"""The exit code if all went well but the dataset lacks rows that were rejected, or images that
failed."""


def print_rejected(count: int, first: Iterable[Mapping[str, object]], listed_in: str) -> None:
    """Print the first rejected rows on standard error."""
    if not count:
        return
    echo(f"rejected {counted(count, 'row')}{listed_in}:", err=True)
    for row, _ in zip(first, range(MAX_LISTED_ROWS), strict=False):
        echo(f"  {describe_rejected(row)}", err=True)


def watch_run(
    bulk_run: BulkRun,
    *,
    as_json: bool,
    timeout: float | None = None,
    watched: Callable[[Iterator[RunStatus]], Iterator[RunStatus]] = iter,
) -> None:
    """Show the progress of a run until it ends, or then its status, and end this process.

    Args:
        timeout: seconds to wait at most, without a progress view.
        watched: is given the statuses of the run, and yields them.

    Raises ResultTimeout.
    """
    statuses = watched(bulk_run.statuses(every_s=1.0, deadline=deadline_of(timeout)))
    try:
        if as_json or timeout is not None:
            [last] = deque(statuses, maxlen=1)
            statuses = iter([last_or_raise(last, timeout)])
        if as_json:
            echo_json(last.model_dump_json())
        else:
            last = watch(statuses, make_console())
    except KeyboardInterrupt:
        echo(f"The run continues. `imagefleet bulk wait {bulk_run.id}` shows it again.", err=True)
        sys.exit(130)
    if last.failed_images:
        for failure, _ in zip(bulk_run.failures(), range(MAX_LISTED_ROWS), strict=False):
            echo(f"  row {failure.row}: {failure.code}: {failure.message}", err=True)
    for text in error_lines(last) if as_json else ():  # the view shows them
        echo(f"  {text}", err=True)
    if last.state is not State.SUCCEEDED:
        sys.exit(1)
    exit_saying_what_lacks(bulk_run, last.failed_images, as_json=as_json)


def exit_saying_what_lacks(bulk_run: BulkRun, failed_images: int, *, as_json: bool) -> NoReturn:
    """End this process with a code of its own, and a last line, if the dataset of the run lacks
    rows that were rejected, or images that failed."""
    lacks = {"rejected row": bulk_run.plan.rejected, "failed image": failed_images}
    if not (named := [counted(number, what) for what, number in lacks.items() if number > 0]):
        sys.exit(0)
    echo(f"The dataset lacks {' and '.join(named)}.", err=as_json)
    sys.exit(EXIT_INCOMPLETE)


def print_dry_run(found: DryRun, *, as_json: bool) -> NoReturn:
    """Print what a run would make, and end this process."""
    _print_dry_run(found, as_json=as_json)
    if found.refused:
        echo(f"The run would be refused: {found.refused}", err=True)
        sys.exit(1)
    sys.exit(EXIT_INCOMPLETE if found.rejected else 0)


def _print_dry_run(found: DryRun, *, as_json: bool) -> None:
    if as_json:
        echo_json(json.dumps(asdict(found), ensure_ascii=False))
        return
    print_rejected(found.rejected, found.rejected_rows, "")
    images = f", {found.input_images:,} with an init image" if found.input_images else ""
    latents = f", {found.input_latents:,} with latents" if found.input_latents else ""
    echo(
        f"rows    {found.rows:,}{images}{latents}; "
        f"{found.rejected:,} rejected, {found.duplicates:,} duplicate"
    )
    echo(f"images  {found.images:,} in {counted(found.shards, 'shard')}")
    echo(f"time    {_time(found)}")
    echo(f"size    {_size(found)}")
    if found.new_images < found.images and not found.is_planned:
        echo(f"new     {counted(found.new_images, 'image')}; the others are planned already")
    if found.is_planned:
        echo("The destination holds this plan already; the run would resume it.")
    echo("Nothing was written or queued.")


def _time(found: DryRun) -> str:
    if found.seconds is None:
        return f"unknown: {found.seconds_unknown}"
    workers = counted(found.workers, "worker")
    return f"about {format_duration(found.seconds)} on {workers}, if nothing else waits"


def _size(found: DryRun) -> str:
    if found.size is not None:
        return f"about {_bytes(found.size)}"
    if found.size_limit is not None:
        return f"at most {_bytes(found.size_limit)}, without compression; no file was measured yet"
    return "unknown: no worker has announced the size of the images"


def _bytes(size: int) -> str:
    amount, units = float(size), ["bytes", "kB", "MB", "GB", "TB"]
    while amount >= 1_000 and len(units) > 1:
        amount, units = amount / 1_000, units[1:]
    return f"{amount:.3g} {units[0]}"
