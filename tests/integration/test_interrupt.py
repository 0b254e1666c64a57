"""Ctrl-C while a command is being loaded ends it at once, without a traceback."""

import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["imagefleet.producer", "imagefleet.worker"])
def test_ctrl_c_while_modules_are_imported_prints_no_traceback(module: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", module, "--version"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:  # each module, once it is imported
            if line.rpartition("|")[2].strip() == "click":
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        assert process.wait() == -signal.SIGINT
    assert "Traceback" not in rest
