"""The chaos suite itself, for as long as a test may take; `make chaos` is the long one."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_prompt_is_lost_doubled_or_foreign_whatever_dies(tmp_path: Path) -> None:
    """In a process of its own: it starts servers, forks workers and is in earnest about signals.

    `CHAOS_SEED` draws the same again; the seed is printed.
    """
    seed = ["--seed", os.environ["CHAOS_SEED"]] if "CHAOS_SEED" in os.environ else []
    size = ["--jobs", "500", "--seconds", "45", "--killers", "2"]
    command = [sys.executable, "-m", "tests.chaos", *size, *seed, "--folder", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
