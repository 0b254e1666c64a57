"""A worker on a host without a TPU says nothing of TPUs."""

import subprocess
import sys

_START = """
import logging
logging.basicConfig(level=logging.INFO)
from imagefleet.worker.engine.placement.mesh import start_backend
start_backend(1)
"""


def test_no_line_about_libtpu_is_logged_on_a_cpu() -> None:
    ended = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "tpu" not in ended.stderr.lower()
