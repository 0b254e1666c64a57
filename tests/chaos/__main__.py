"""`python -m tests.chaos`: run the fleet under faults and print the audit as a table.

The exit code is 1 if the audit found a problem.
"""

import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import click

from imagefleet.shared.redis_client.local_server import find_server
from tests.chaos.suite import ChaosConfig, run


@click.command()
@click.option(
    "--seed",
    type=int,
    default=None,
    help="Draw the same jobs and faults as an earlier run. Default: a random seed.",
)
@click.option("--jobs", default=ChaosConfig.jobs, show_default=True)
@click.option(
    "--seconds",
    default=ChaosConfig.seconds,
    show_default=True,
    help="How long faults are injected.",
)
@click.option(
    "--killers", default=ChaosConfig.killers, show_default=True, help="Jobs that kill their worker."
)
@click.option("--folder", type=Path, default=None, help="Keep logs and Redis's files here.")
@click.option("--out", type=Path, default=None, help="Write the table to this file too.")
def main(
    seed: int | None, jobs: int, seconds: float, killers: int, folder: Path | None, out: Path | None
) -> None:
    seed = secrets.randbits(32) if seed is None else seed
    print(f"seed {seed}, server {find_server()}", flush=True)
    kept = folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    report = run(ChaosConfig(seed=seed, jobs=jobs, seconds=seconds, killers=killers), kept)
    print(report.markdown())
    if out is not None:
        out.write_text(report.markdown())
    for sentence in report.problems:
        print(f"WRONG: {sentence}")
    if report.problems:
        print(f"the audit failed; the logs are in {kept}")
        sys.exit(1)
    print("0 lost, 0 doubled, 0 foreign")
    if folder is None:
        shutil.rmtree(kept)


if __name__ == "__main__":
    main()
