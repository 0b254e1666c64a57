"""Ask a process in diffusers' environment, one JSON object a line.

The other side is `tools.parity.serve_truth`. This module needs neither torch nor JAX.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

_SHOWN: Final = 2000
"""Characters of the log that the error shows."""


class TruthProcess:
    """The process that asks diffusers."""

    def __init__(self, python: str, module: str, log: Path) -> None:
        """
        Args:
            python: That of `make parity`.
            module: It answers with `serve`.
            log: It gets what the libraries print.
        """
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [python, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )

    @classmethod
    @contextmanager
    def running(cls, python: str, module: str, log: Path) -> Iterator[Self]:
        """Start the process, and end it."""
        process = cls(python, module, log)
        try:
            yield process
        finally:
            process.stop()

    def ask(self, question: dict[str, Any]) -> None:
        """Send a question."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # `answer` says why the process has ended
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to the oldest question.

        Raises:
            RuntimeError: The process has ended. The message is the end of its log.
        """
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            end = self._log.read_text(errors="replace")[-_SHOWN:]
            raise RuntimeError(f"the process that asks diffusers has ended:\n{end}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()
