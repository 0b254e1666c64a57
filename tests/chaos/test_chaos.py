"""Short chaos runs; `make chaos` is the long one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
SIZES: Final = {
    "short": (
        *("--jobs", "150", "--seconds", "12", "--killers", "1", "--hostile-every", "10"),
        *("--rows", "0"),
    ),
    "cluster": ("--cluster", "--jobs", "150", "--seconds", "45", "--killers", "1"),
    "long": ("--jobs", "500", "--seconds", "45", "--killers", "2", "--hostile-every", "10"),
}


@pytest.mark.parametrize("size", SIZES)
def test_no_job_is_lost_duplicated_or_foreign_when_parts_are_killed(
    size: str, tmp_path: Path
) -> None:
    """The run has its own process, because it starts servers, forks workers and sends signals.

    The seed is printed. `CHAOS_SEED` repeats the jobs and faults of an earlier run.
    """
    seed = ["--seed", os.environ["CHAOS_SEED"]] if "CHAOS_SEED" in os.environ else []
    options = [*SIZES[size], *seed, "--folder", str(tmp_path)]
    command = [sys.executable, "-m", "tests.chaos", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
