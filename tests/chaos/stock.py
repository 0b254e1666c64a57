"""`python -m tests.chaos.stock`: inject the same faults into plain Celery, for comparison.

Its task is easier: there are no poison prompts (Celery would redeliver one for ever), no
cancellations, no storage and no callbacks. The exit code is 1 if the audit finds no problem,
because then the faults are too weak to prove anything.
"""

import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

import click
import redis

from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.chaos.audit import AuditReport
from tests.chaos.faults import FaultInjector
from tests.chaos.fleet import Fleet
from tests.chaos.options import chaos_options, print_table
from tests.chaos.planned_jobs import draw_jobs
from tests.chaos.processes import Producers
from tests.chaos.servers import OneServer
from tests.chaos.stock_app import FINISHED, STARTED, URL, VISIBILITY_S, run_stock_worker
from tests.chaos.suite import ChaosConfig

_IMPORTS = ("celery.bin.celery", "celery.apps.worker", "celery.concurrency.thread", "kombu")
_QUIET_TIMEOUT_S = 12.0 * VISIBILITY_S
"""Seconds without a finished job after which no more are expected."""


def run(config: ChaosConfig, folder: Path) -> AuditReport:
    with ExitStack() as stack:
        server = stack.enter_context(LocalRedisServer(folder / "redis"))
        planned = draw_jobs(
            config.seed, jobs=config.jobs, seconds=0.9 * config.seconds, killers=0, callback_url=""
        )
        environment = {URL: server.url}
        producers = stack.enter_context(
            Producers(planned, environment, folder, module="tests.chaos.stock_app")
        )
        workers = folder / "workers"
        fleet = stack.enter_context(
            Fleet(
                workers, environment, size=config.workers, main=run_stock_worker, imports=_IMPORTS
            )
        )
        injector = FaultInjector(fleet, OneServer(server), config.seed, config.lease_s)
        injector.run(config.seconds, lambda: None)
        fleet.thaw_all()
        client = connect(server.url)
        wait_until_quiet(client, fleet, producers, config)
        fleet.stop()
        report = AuditReport(
            title=f"Stock transport: {config.jobs:,} jobs, {config.seconds:.0f} s of chaos"
        )
        for fault, count in injector.counts.items():
            report.note("injected faults", fault, count)
        audit(report, producers.accepted(), client)
    return report


def wait_until_quiet(
    client: redis.Redis, fleet: Fleet, producers: Producers, config: ChaosConfig
) -> None:
    changed, before = time.monotonic(), -1
    while time.monotonic() < changed + _QUIET_TIMEOUT_S:
        fleet.refill()
        with suppress(redis.RedisError):
            runs = client.scard(FINISHED)
            if runs != before or not producers.done():
                changed, before = time.monotonic(), runs
            elif len(_runs(client, FINISHED)) == config.jobs and not client.exists("unacked"):
                return
        time.sleep(0.5)


def audit(report: AuditReport, accepted: list[str], client: redis.Redis) -> None:
    started, finished = _runs(client, STARTED), _runs(client, FINISHED)
    section = "jobs"
    report.note(section, "submitted", len(accepted))
    report.note(section, "finished at least once", len(finished))
    report.note(section, "runs started in all", started.total())
    report.expect_none(section, "lost", set(accepted) - finished.keys())
    duplicated = [job_id for job_id, times in finished.items() if times > 1]
    report.expect_none(section, "reported finished more than once", duplicated)
    left = [key for key in client.scan_iter() if key.startswith(("unacked", "celery\x06"))]
    report.note("left in Redis", "unacked messages", client.hlen("unacked"))
    report.note("left in Redis", "waiting messages", client.llen("celery"))
    report.note("left in Redis", "keys of the transport", len(left))


def _runs(client: redis.Redis, key: str) -> Counter[str]:
    """Return how many runs of each job the set at `key` holds."""
    runs = cast(set[str], client.smembers(key))
    return Counter(run.partition(" ")[0] for run in runs)


@click.command()
@chaos_options
def main(seed: int, jobs: int, seconds: float, out: Path | None) -> None:
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-stock-") as name:
        report = run(ChaosConfig(seed=seed, jobs=jobs, seconds=seconds), Path(name))
    print_table(report, out)
    print("; ".join(report.problems) or "nothing lost or duplicated: the faults are too weak")
    sys.exit(not report.problems)


if __name__ == "__main__":
    main()
