"""The TPU compiler estimates no method of a convolution to be faster than the chosen one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

LIBTPU = ROOT / ".libtpu"

pytestmark = pytest.mark.skipif(
    not (LIBTPU / ".installed").is_file(),
    reason="the TPU compiler is not installed; `make .libtpu/.installed` installs it on Linux",
)


def test_the_chosen_convolutions_are_not_slower_than_those_of_xla() -> None:
    path = os.pathsep.join([str(LIBTPU), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.tpu.compare_convolutions", "v5e-8"],
        cwd=Path(ROOT),
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    estimates: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    assert len(estimates) == 2
    for map_size, (chosen, xla) in estimates.items():
        assert chosen <= xla, map_size
