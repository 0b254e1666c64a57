"""`imagefleet fleet`: show the workers and the queues."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from imagefleet.producer.client.client import Client
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.output import (
    cell,
    echo_json,
    format_duration,
    json_option,
    make_console,
)
from imagefleet.producer.connection.outages import OutageTolerance
from imagefleet.shared.jobs.fleet_status import FleetStatus, QueueStatus
from imagefleet.shared.jobs.membership import HostDifference
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.text.printable import counted, printable

_REFRESH_S: Final = 2.0
_MAX_ERROR: Final = 1_000
_MAX_WIDTH: Final = 1_000
_MAX_HOSTS: Final = 20
"""The failures of this many hosts are shown."""
_COLOURS: Final = {
    WorkerState.JOINING: "yellow",
    WorkerState.READY: "green",
    WorkerState.DRAINING: "yellow",
    WorkerState.QUARANTINED: "red",
    WorkerState.LOST: "red",
    WorkerState.UNKNOWN: "dim",
}


@client_command
@click.option("--watch", is_flag=True, help="Show it again every 2 seconds until Ctrl-C.")
@json_option("Print one JSON object; with --watch one per line.")
def fleet(client: Client, watch: bool, as_json: bool) -> None:
    """Show the workers of the fleet, its queues, and what else waits.

    A worker reports itself with each heartbeat, every 5 seconds by default. Its rates are of the
    last minute: images/s, the share of batch slots that were used, the seconds of a step, and the
    share of the time during which its devices were busy. Attempts at jobs that failed are counted
    by host and error code.
    """
    statuses = _statuses(client) if watch else iter([client.fleet.read()])
    if as_json:
        for status in statuses:
            echo_json(status.model_dump_json())
        return
    console = make_console()
    if not watch:
        status = next(statuses)
        console.width = max(console.width, _width_of(status.workers, console))
        console.print(render(status))
        return
    with Live(console=console, auto_refresh=False, screen=sys.stdout.isatty()) as live:
        for status in statuses:
            live.update(render(status), refresh=True)


def _statuses(client: Client) -> Iterator[FleetStatus]:
    """Yield the status again and again, and wait while Redis is away."""
    outages = OutageTolerance()
    while True:
        yield outages.await_answer(client.connection.read_fleet)
        time.sleep(_REFRESH_S)


def render(status: FleetStatus) -> RenderableType:
    """Return the view of one status."""
    summary = (
        f"{counted(status.waiting, 'message')} waiting, {status.in_flight:,} in flight, "
        f"{status.delayed:,} delayed, {counted(status.dead_letters, 'dead letter')}; "
        f"{counted(status.callbacks, 'callback')} waiting, {status.callbacks_given_up:,} given up"
    )
    return Group(
        _workers(status.workers),
        *_failures(status.failures),
        *(_difference(each) for each in status.differences),
        Text(""),
        _queues(status.queues),
        *_lanes_down(status),
        Text(summary, "bold"),
    )


def _lanes_down(status: FleetStatus) -> Iterator[RenderableType]:
    if status.lanes_down:
        down, unknown = (
            ", ".join(map(str, each)) for each in (status.lanes_down, status.lanes_unknown)
        )
        text = f"lanes that do not answer, and count as they did last: {down}"
        yield Text(f"{text}; not known, and left out: {unknown}" if unknown else text, "red")


def _width_of(workers: Sequence[WorkerStatus], console: Console) -> int:
    """Return the width at which the names of workers, which `drain` takes, are shown whole. A
    terminal breaks longer lines itself."""
    table, wide = _worker_table(workers), console.options.update(max_width=_MAX_WIDTH)
    return Measurement.get(console, wide, table).maximum


def _difference(difference: HostDifference) -> Text:
    text = cell(f"{difference}{' (allowed)' if difference.allowed else ''}")
    text.stylize("yellow" if difference.allowed else "red")
    return text


def _workers(workers: Sequence[WorkerStatus]) -> RenderableType:
    """Return one line per kind of worker, one per worker, and their latest errors."""
    if not workers:
        return Text("no worker is alive", "red")
    kinds = Counter(
        (each.model, " ".join(each.shapes), each.devices, each.version) for each in workers
    )
    return Group(
        *(
            cell(f"workers: {count}, model {model}, shapes {shapes}, devices {devices}, {version}")
            for (model, shapes, devices, version), count in kinds.items()
        ),
        _worker_table(workers),
        *(
            Text(printable(_latest_error(each), _MAX_ERROR), "dim" if each.recovered else "")
            for each in workers
            if each.last_error
        ),
    )


def _worker_table(workers: Sequence[WorkerStatus]) -> Table:
    table = Table("worker", "state", box=None, pad_edge=False)
    for name in ("in flight", "images", "images/s", "filled", "step s", "busy", "lease s"):
        table.add_column(name, justify="right")
    for each in workers:
        table.add_row(
            cell(each.worker),
            Text(each.state, _COLOURS[each.state]),
            f"{each.claims:,}",
            f"{each.images:,}",
            f"{each.images_per_s:.2f}",
            _percent(each.batch_fill),
            "" if each.step_s is None else f"{each.step_s:.3f}",
            _percent(each.busy),
            "" if each.lease_left_s is None else f"{each.lease_left_s:.0f}",
        )
    return table


def _latest_error(worker: WorkerStatus) -> str:
    age_s = worker.last_error_age_s
    ago = "" if age_s is None else f", {format_duration(age_s)} ago"
    recovered = ", recovered since" if worker.recovered else ""
    return f"latest error of {worker.worker}{ago}{recovered}: {worker.last_error}"


def _failures(failures: Mapping[str, Mapping[str, int]]) -> Iterator[RenderableType]:
    """Yield one line per host that failed attempts in the last hour, the most first."""
    totals = {host: sum(codes.values()) for host, codes in failures.items()}
    for host in sorted(totals, key=lambda name: (-totals[name], name))[:_MAX_HOSTS]:
        codes = ", ".join(f"{code} {count:,}" for code, count in sorted(failures[host].items()))
        yield cell(f"failed attempts on {host} in the last hour: {codes}")
    if len(totals) > _MAX_HOSTS:
        yield cell(f"other hosts with failed attempts: {len(totals) - _MAX_HOSTS:,}; see --json")


def _queues(queues: Sequence[QueueStatus]) -> RenderableType:
    table = Table("queue", box=None, pad_edge=False)
    for name in ("waiting", "tenants", "oldest"):
        table.add_column(name, justify="right")
    for each in queues:
        what = f"{each.model} {each.shape}" + (" (datasets)" if each.datasets else "")
        oldest = "" if each.oldest_s is None else format_duration(each.oldest_s)
        table.add_row(cell(what), f"{each.waiting:,}", f"{each.tenants:,}", oldest)
    return table if table.rows else Text("nothing waits")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
