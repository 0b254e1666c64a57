"""Ctrl-C while a command is being loaded ends it at once, without a traceback."""

import signal
import subprocess
import sys

import pytest

_INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["imagefleet.producer", "imagefleet.worker"])
def test_ctrl_c_while_modules_are_imported_prints_no_traceback(module: str) -> None:
    command = [sys.executable, "-c", _INTERRUPTED_IMPORT, module, "--version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
