"""`python -m tests.alerts`: let each shipped alert fire in a real Prometheus, by a real cause.

The exit code is 1 if an alert did not fire, if one fired in a healthy fleet, or if a query of the
dashboard has neither data nor a listed reason; 2 if there is no Prometheus.
"""

import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.alerts.causes import CAUSES, Cause, healthy
from tests.alerts.dashboard import PanelQuery, read_dashboard
from tests.alerts.fleet import SCRAPE_S, Targets
from tests.alerts.scenario import Outcome, Stage
from tests.alerts.shortened_rules import ShortenedRules, shorten
from tests.support.processes import ROOT
from tests.support.prometheus import PrometheusServer, write_targets

_RULES: Final = ROOT / "deploy/prometheus/alerts.yml"
_DASHBOARD: Final = ROOT / "deploy/grafana/imagefleet.json"
_HEALTHY: Final = Cause(
    name="healthy", text="nothing; jobs run with callbacks", alerts=(), provoke=healthy
)


@click.command()
@click.option("--prometheus", default="prometheus", show_default=True, help="The program.")
@click.option("--factor", default=30.0, show_default=True, help="Divides the times of the rules.")
@click.option("--at-once", default=5, show_default=True, help="Causes at the same time.")
@click.option("--only", multiple=True, help="The name of a cause; by default all run.")
@click.option("--folder", type=Path, default=None, help="Keep logs and samples here.")
def main(
    prometheus: str, factor: float, at_once: int, only: Sequence[str], folder: Path | None
) -> None:
    if shutil.which(prometheus) is None:
        print(f"there is no {prometheus}: install it, on Debian with `apt-get install prometheus`")
        sys.exit(2)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the S3 server prints each request
    causes = [cause for cause in CAUSES if not only or cause.name in only]
    rules = shorten(_RULES, factor)
    _print_changes(rules, factor)
    kept = folder or Path(tempfile.mkdtemp(prefix="alerts-"))
    problems = run(prometheus, rules, causes, at_once, kept)
    for problem in problems:
        print(f"WRONG: {problem}")
    if problems:
        print(f"the logs are in {kept}")
        sys.exit(1)
    print("each alert fired, and each query of the dashboard has data or a reason")
    if folder is None:
        shutil.rmtree(kept)


def run(
    binary: str, rules: ShortenedRules, causes: Sequence[Cause], at_once: int, folder: Path
) -> list[str]:
    """Run the causes, print what came of them, and return what is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    started_at, outcomes = time.time(), list[Outcome]()

    def on_end(outcome: Outcome) -> None:
        outcomes.append(outcome)
        fired = ", ".join(f"{alert} {s:.0f} s" for alert, s in outcome.fired.items())
        print(f"{time.time() - started_at:4.0f} s  {outcome.cause.name}: {fired}", flush=True)

    with ExitStack() as stack:
        redis = stack.enter_context(LocalRedisServer(folder / "redis"))
        targets = Targets(folder)
        config = _config(folder, rules, targets)
        server = stack.enter_context(PrometheusServer(binary, folder, config))
        stage = Stage(folder, redis.url, targets, server)
        outcomes.append(stage.run(causes, _HEALTHY, at_once, on_end))
        queries = list(read_dashboard(_DASHBOARD, server, started_at, time.time()))
        failed = server.failed_rules()
    _print_alerts(outcomes)
    _print_dashboard(queries)
    print(f"{time.time() - started_at:.0f} s in all")
    wanted = {alert for cause in causes for alert in cause.alerts}
    if len(causes) == len(CAUSES):
        wanted = set(rules.alerts())
    return [*failed, *_problems(outcomes, queries, wanted)]


def _config(folder: Path, rules: ShortenedRules, targets: Targets) -> dict[str, object]:
    file = folder / "alerts.yml"
    write_targets(file, rules.rules)
    interval = f"{SCRAPE_S:g}s"
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(file)],
        "scrape_configs": [
            {
                "job_name": job,
                "file_sd_configs": [{"files": [str(listed)], "refresh_interval": interval}],
            }
            for job, listed in targets.files.items()
        ],
    }


def _problems(
    outcomes: Sequence[Outcome], queries: Sequence[PanelQuery], wanted: set[str]
) -> list[str]:
    fired = {alert for outcome in outcomes for alert in outcome.fired if outcome.cause.alerts}
    unexpected = [
        alert for outcome in outcomes if not outcome.cause.alerts for alert in outcome.fired
    ]
    return [
        *(f"{each.cause.name}: {text}" for each in outcomes for text in each.problems),
        *(f"{alert} did not fire" for alert in sorted(wanted - fired)),
        *(f"{alert} fired in a healthy fleet" for alert in unexpected),
        *(
            f"no data on the dashboard: {query.panel}: {query.expression}"
            for query in queries
            if not query.series and not query.reason
        ),
    ]


def _print_changes(rules: ShortenedRules, factor: float) -> None:
    print(f"times of the rules, divided by {factor:g}; the expressions are otherwise as shipped:")
    for alert, changes in rules.changes.items():
        print(f"- {alert}: {', '.join(changes) or 'nothing'}")


def _print_alerts(outcomes: Sequence[Outcome]) -> None:
    print("\n| alert | cause | fired after s | fired beside it |\n|---|---|---|---|")
    for outcome in outcomes:
        cause = outcome.cause
        others = ", ".join(alert for alert in outcome.fired if alert not in cause.alerts)
        for alert in cause.alerts or ("none",):
            after = outcome.fired.get(alert)
            number = "" if not cause.alerts else "never" if after is None else f"{after:.0f}"
            print(f"| {alert} | {cause.text} | {number} | {others} |")


def _print_dashboard(queries: Sequence[PanelQuery]) -> None:
    print("\n| panel of the dashboard | query | series |\n|---|---|---|")
    for query in queries:
        print(
            f"| {query.panel} | `{query.expression}` | {query.series or query.reason or 'NONE'} |"
        )
    print()


if __name__ == "__main__":
    main()
