"""`python -m tests.chaos`: a run, its ledger as a table, exit code 1 if anything is wrong."""

import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import click

from imagefleet.shared.redis_client.local_server import find_server
from tests.chaos.suite import Plan, run


@click.command()
@click.option("--seed", type=int, default=None, help="To draw the same again. Default: any.")
@click.option("--jobs", default=Plan.jobs, show_default=True)
@click.option("--seconds", default=Plan.seconds, show_default=True, help="Of mischief.")
@click.option("--killers", default=Plan.killers, show_default=True, help="Deadly prompts.")
@click.option("--folder", type=Path, default=None, help="Keeps logs and Redis's files.")
@click.option("--out", type=Path, default=None, help="Writes the table there too.")
def main(
    seed: int | None, jobs: int, seconds: float, killers: int, folder: Path | None, out: Path | None
) -> None:
    seed = secrets.randbits(32) if seed is None else seed
    print(f"seed {seed}, server {find_server()}", flush=True)
    kept = folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    ledger = run(Plan(seed=seed, jobs=jobs, seconds=seconds, killers=killers), kept)
    print(ledger.markdown())
    if out is not None:
        out.write_text(ledger.markdown())
    for sentence in ledger.wrong:
        print(f"WRONG: {sentence}")
    if ledger.wrong:
        print(f"the promise is broken; the logs are in {kept}")
        sys.exit(1)
    print("0 lost, 0 doubled, 0 foreign")
    if folder is None:
        shutil.rmtree(kept)


if __name__ == "__main__":
    main()
