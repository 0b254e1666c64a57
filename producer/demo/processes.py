"""Run the demo's worker. Its environment holds the settings; it dies with its parent."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from imagefleet.shared.process.child_process import die_with_parent

_STOP_TIMEOUT_S: Final = 8.0


class WorkerProcess:
    """An `imagefleet-worker` process. Its output goes to the file `log`."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str] = ()) -> None:
        """Start the worker with these command line arguments."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "imagefleet.worker", *arguments],
                env={**os.environ, **self._environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches only the demo, which stops the worker
                preexec_fn=die_with_parent(),
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the process runs or before it started."""
        return None if self._process is None else self._process.poll()

    def log_tail(self, lines: int = 5) -> str:
        """Return the last lines of the log, or an empty string without a log."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

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
