"""`python -m tests.chaos`: run the fleet under faults and print the audit as a table.

The exit code is 1 if the audit found a problem.
"""

import tempfile
from pathlib import Path
from typing import Any

import click

from imagefleet.shared.redis_client.local_server import find_server
from tests.chaos.options import chaos_options, finish_run
from tests.chaos.oracle import compile_programs
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
@click.option(
    "--rows",
    default=ChaosConfig.rows,
    show_default=True,
    help="Rows of a dataset that is made meanwhile; 0 for none.",
)
@click.option(
    "--model",
    default=ChaosConfig.model,
    show_default=True,
    help="A real model's images are audited within one level, and no prompt kills.",
)
@click.option("--workers", default=ChaosConfig.workers, show_default=True)
@click.option(
    "--pace",
    default=ChaosConfig.pace,
    show_default=True,
    help="How many times as long the pauses between faults of workers are, if these start slowly.",
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
def main(folder: Path | None, out: Path | None, **options: Any) -> None:
    config = ChaosConfig(**options)
    print(f"seed {config.seed}, server {find_server()}", flush=True)
    if config.is_real:
        compile_programs(config.model_settings)
    kept = folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    finish_run(run(config, kept), kept, out, keep=folder is not None)


if __name__ == "__main__":
    main()
