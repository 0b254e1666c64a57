"""Simulate large fleets on one, two and four masters of a cluster, without their devices.

`python -m benchmarks.lanes --hosts 1000 4000 --share 1 0.5` starts real clusters, one after the
other, and measures the CPU time that real actions of workers take their masters. Then it simulates
fleets whose hosts ask for these actions when real ones would, of masters that do one thing at a
time and have each a core, or half of one. It prints images a second, the share of linear, how long
claims take, and the CPU time of Redis an image.

The CPU time is measured, the rest is computed: the machine needs no quiet, and no 4,000 hosts. It
does not show networks, disks, failovers, or what else large fleets do to real servers. `--repeats`
measures all in turn several times and keeps the lowest of each action, as other programs on the
machine make it longer. `lowest` and `highest batch ms` show by how much.
`--masters 0` stands for one server without a cluster, whose fleet has one lane.
"""

import tempfile
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.report import parser_of, print_json
from benchmarks.simulation.chart import line_chart
from benchmarks.simulation.masters import simulate
from benchmarks.simulation.servers import started
from benchmarks.simulation.service_times import ServiceTimes, measure

_HEADS: Final = (
    *("masters", "share of a core", "hosts", "images/s", "of linear", "claim ms p50, p99"),
    *("Redis ms an image", "busy"),
)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--masters", type=int, nargs="*", default=[0, 1, 2, 4])
    parser.add_argument("--hosts", type=int, nargs="*", default=[1000, 4000])
    parser.add_argument("--share", type=float, nargs="*", default=[1.0], help="of a core, each")
    parser.add_argument("--repeats", type=int, default=5, help="of the measurement")
    parser.add_argument("--batches", type=int, default=96, help="that are measured")
    parser.add_argument("--chart", type=Path, help="write a chart of images a second here (SVG)")
    options = parser.parse_args()
    print(f"| {' | '.join(_HEADS)} |\n{'|---' * len(_HEADS)}|")
    figures: dict[str, dict[str, Any]] = {}
    measured: dict[int, list[ServiceTimes]] = {masters: [] for masters in options.masters}
    for number in range(options.repeats):
        order = options.masters[:: -1 if number % 2 else 1]
        for masters in order:  # in turn: other programs make all longer alike
            measured[masters].append(_measure(masters, max(options.hosts), options.batches))
    for masters, found in measured.items():
        times = ServiceTimes.lowest(found)
        name = _name(masters)
        figures[name] = {f"{kind} ms": 1e3 * times.mean_s(kind) for kind in sorted(times.samples)}
        batches = [1e3 * each.per_batch_s() for each in found]
        figures[name] |= {"lowest batch ms": min(batches), "highest batch ms": max(batches)}
        figures[name]["synchronisation ms"] = 1e3 * times.sync_s
        for share, hosts in product(options.share, options.hosts):
            got = simulate(times, hosts, share)
            figures[f"{name}, {share:g}, {hosts} hosts"] = got
            print(_row(name, share, hosts, got), flush=True)
    if options.chart is not None:
        options.chart.write_text(_chart(options, figures))
    rounded = {
        name: {key: round(value, 4) for key, value in got.items()} for name, got in figures.items()
    }
    print_json("lanes", rounded)


def _name(masters: int) -> str:
    return ("one server", "1 master")[masters] if masters < 2 else f"{masters} masters"


def _measure(masters: int, fleet: int, batches: int) -> ServiceTimes:
    with (
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder), masters, "always") as servers,
    ):
        return measure(servers, fleet, batches)


def _row(name: str, share: float, hosts: int, got: dict[str, Any]) -> str:
    columns = [
        name,
        f"{share:g}",
        str(hosts),
        f"{got['images_per_s']:.0f}",
        f"{got['of_linear']:.3f}",
        f"{got['claim_ms_p50']:.1f}, {got['claim_ms_p99']:.1f}",
        f"{got['redis_ms_per_image']:.3f}",
        f"{got['emptiest_server']:.2f} to {got['fullest_server']:.2f}",
    ]
    return f"| {' | '.join(columns)} |"


def _chart(options: Any, figures: dict[str, dict[str, Any]]) -> str:
    names, share = [_name(masters) for masters in options.masters], options.share[0]
    lines = {
        name: [
            (hosts, figures[f"{name}, {share:g}, {hosts} hosts"]["images_per_s"])
            for hosts in sorted(options.hosts)
        ]
        for name in names
    }
    title = f"Images a second, with {share:g} core{'s' * (share != 1)} for each master"
    return line_chart(title, "hosts", "images a second", lines)


if __name__ == "__main__":
    main()
