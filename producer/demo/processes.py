"""Run the demo's worker and gateway. Their environment holds the settings; they die with their
parent."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from imagefleet.shared.process.child_process import die_with_parent

_STOP_TIMEOUT_S: Final = 8.0


class DemoProcess:
    """A process that runs one module of imagefleet. Its output goes to the file `log`."""

    def __init__(self, module: str, environment: Mapping[str, str], log: Path) -> None:
        self._module = module
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str] = ()) -> None:
        """Start the process with these command line arguments."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, *arguments],
                env={**os.environ, **self._environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches only the demo, which stops the others
                preexec_fn=die_with_parent(),
            )

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the process runs or before it started."""
        return None if self._process is None else self._process.poll()

    def log_tail(self, lines: int = 5) -> str:
        """Return the last lines of the log, or an empty string without a log."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def log_text(self) -> str:
        """Return all that the process has written."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the process has not ended after 8 seconds."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
