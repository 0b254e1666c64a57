"""`python -m tests.chaos`: run the fleet under faults and print the audit as a table.

The exit code is 1 if the audit found a problem.
"""

import tempfile
from pathlib import Path

import click

from imagefleet.shared.redis_client.local_server import find_server
from tests.chaos.options import chaos_options, finish_run
from tests.chaos.suite import ChaosConfig, run


@click.command()
@chaos_options
@click.option(
    "--killers", default=ChaosConfig.killers, show_default=True, help="Jobs that kill their worker."
)
@click.option(
    "--hostile-every",
    default=ChaosConfig.hostile_every,
    show_default=True,
    help="Add one hostile case for so many jobs; 0 for none.",
)
@click.option(
    "--batching",
    type=click.Choice(["static", "continuous"]),
    default=ChaosConfig.batching,
    show_default=True,
    help="The policy of the workers.",
)
@click.option("--cluster", is_flag=True, help="Use three masters with a replica each.")
@click.option(
    "--prometheus",
    is_flag=False,
    flag_value="prometheus",
    default=None,
    help="Let this Prometheus scrape the fleet, and audit its counters too; by default that of the "
    "PATH.",
)
@click.option("--folder", type=Path, default=None, help="Keep logs and Redis's files here.")
def main(
    seed: int,
    jobs: int,
    seconds: float,
    killers: int,
    hostile_every: int,
    batching: str,
    cluster: bool,
    prometheus: str | None,
    folder: Path | None,
    out: Path | None,
) -> None:
    print(f"seed {seed}, server {find_server()}", flush=True)
    kept = folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    config = ChaosConfig(
        seed=seed,
        jobs=jobs,
        seconds=seconds,
        killers=killers,
        hostile_every=hostile_every,
        batching=batching,
        cluster=cluster,
        prometheus=prometheus,
    )
    report = run(config, kept)
    finish_run(report, kept, out, keep=folder is not None)


if __name__ == "__main__":
    main()
