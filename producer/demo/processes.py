"""The demo's worker process: started with settings in its environment, gone with its parent."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from imagefleet.shared.redis_client.child_process import die_with_parent

_PATIENCE_S: Final = 8.0


class WorkerProcess:
    """`imagefleet-worker` beside us. Its output goes to `log`."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str] = ()) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "imagefleet.worker", *arguments],
                env={**os.environ, **self._environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the demo; it stops the worker itself
                preexec_fn=die_with_parent(),
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    def last_words(self, lines: int = 5) -> str:
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
