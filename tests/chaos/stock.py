"""`python -m tests.chaos.stock`: the same mischief on plain Celery, for comparison.

It has it easier: no poison prompts (one would be redelivered for ever), no withdrawals, no storage,
no callbacks to deliver. Exit code 1 if its ledger is clean: then the suite would be too weak.
"""

import secrets
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
from tests.chaos.fleet import Fleet
from tests.chaos.ledger import Ledger
from tests.chaos.mischief import Mischief
from tests.chaos.orders import draw
from tests.chaos.processes import Producers
from tests.chaos.stock_app import BEGUN, FINISHED, URL, VISIBILITY_S, stock_worker
from tests.chaos.suite import Plan

_IMPORTS = ("celery.bin.celery", "celery.apps.worker", "celery.concurrency.thread", "kombu")
_QUIET_S = 12.0 * VISIBILITY_S
"""Nothing finished for so long: nothing more will come."""


def run(plan: Plan, folder: Path) -> Ledger:
    with ExitStack() as stack:
        server = stack.enter_context(LocalRedisServer(folder / "redis"))
        orders = draw(
            plan.seed, jobs=plan.jobs, seconds=0.9 * plan.seconds, killers=0, callback_url=""
        )
        environment = {URL: server.url}
        producers = stack.enter_context(
            Producers(orders, environment, folder, module="tests.chaos.stock_app")
        )
        workers = folder / "workers"
        fleet = stack.enter_context(
            Fleet(workers, environment, size=plan.workers, main=stock_worker, imports=_IMPORTS)
        )
        mischief = Mischief(fleet, server, plan.seed, plan.lease_s)
        mischief.play(plan.seconds, lambda: None)
        fleet.thaw_all()
        client = connect(server.url)
        wait_until_quiet(client, fleet, producers, plan)
        fleet.stop()
        ledger = Ledger(title=f"Stock transport: {plan.jobs:,} jobs, {plan.seconds:.0f} s of chaos")
        for deed, count in mischief.counts.items():
            ledger.note("what was done to it", deed, count)
        audit(ledger, producers.accepted(), client)
    return ledger


def wait_until_quiet(client: redis.Redis, fleet: Fleet, producers: Producers, plan: Plan) -> None:
    changed, before = time.monotonic(), -1
    while time.monotonic() < changed + _QUIET_S:
        fleet.fill()
        with suppress(redis.RedisError):
            runs = client.scard(FINISHED)
            if runs != before or not producers.done():
                changed, before = time.monotonic(), runs
            elif len(_runs(client, FINISHED)) == plan.jobs and not client.exists("unacked"):
                return
        time.sleep(0.5)


def audit(ledger: Ledger, accepted: list[str], client: redis.Redis) -> None:
    begun, finished = _runs(client, BEGUN), _runs(client, FINISHED)
    section = "jobs"
    ledger.note(section, "submitted", len(accepted))
    ledger.note(section, "finished at least once", len(finished))
    ledger.note(section, "runs begun in all", begun.total())
    ledger.never(section, "lost", set(accepted) - finished.keys())
    doubled = [job_id for job_id, times in finished.items() if times > 1]
    ledger.never(section, "reported finished more than once", doubled)
    left = [key for key in client.scan_iter() if key.startswith(("unacked", "celery\x06"))]
    ledger.note("left in Redis", "unacked messages", client.hlen("unacked"))
    ledger.note("left in Redis", "waiting messages", client.llen("celery"))
    ledger.note("left in Redis", "keys of the transport", len(left))


def _runs(client: redis.Redis, key: str) -> Counter[str]:
    """How often each job was noted there."""
    runs = cast(set[str], client.smembers(key))
    return Counter(run.partition(" ")[0] for run in runs)


@click.command()
@click.option("--seed", type=int, default=None, help="To draw the same again. Default: any.")
@click.option("--jobs", default=Plan.jobs, show_default=True)
@click.option("--seconds", default=Plan.seconds, show_default=True, help="Of mischief.")
@click.option("--out", type=Path, default=None, help="Writes the table there too.")
def main(seed: int | None, jobs: int, seconds: float, out: Path | None) -> None:
    seed = secrets.randbits(32) if seed is None else seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-stock-") as name:
        ledger = run(Plan(seed=seed, jobs=jobs, seconds=seconds), Path(name))
    print(ledger.markdown())
    if out is not None:
        out.write_text(ledger.markdown())
    print("; ".join(ledger.wrong) or "nothing lost, nothing doubled: the suite is too weak")
    sys.exit(not ledger.wrong)


if __name__ == "__main__":
    main()
