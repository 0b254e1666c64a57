"""A short chaos run; `make chaos` is the long one."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_job_is_lost_duplicated_or_foreign_when_parts_are_killed(tmp_path: Path) -> None:
    """The run has its own process, because it starts servers, forks workers and sends signals.

    The seed is printed. `CHAOS_SEED` repeats the jobs and faults of an earlier run.
    """
    seed = ["--seed", os.environ["CHAOS_SEED"]] if "CHAOS_SEED" in os.environ else []
    size = ["--jobs", "500", "--seconds", "45", "--killers", "2", "--hostile-every", "10"]
    command = [sys.executable, "-m", "tests.chaos", *size, *seed, "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
