"""Ask both sides for the images of drawn checkpoints: diffusers in a process of its own, and us.

Input: the names of cases. Output: their entries in the ledger.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from imagefleet.shared.errors import ImagefleetError
from tools.parity.fuzz.draft import Draft
from tools.parity.fuzz.draw import draw
from tools.parity.fuzz.ledger import Entry, Outcome, compare

_SHOWN: Final = 2000
"""Characters of the log that the error shows."""


class Truth:
    """The process that asks diffusers."""

    def __init__(self, python: str, log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [python, "-m", "tools.parity.fuzz.truth"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )

    def ask(self, description: dict[str, Any]) -> None:
        """Send the description of a checkpoint."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # `answer` says why the process has ended
            self._process.stdin.write(json.dumps(description) + "\n")
            self._process.stdin.flush()

    def answer(self) -> Outcome:
        """Wait for the answer to the oldest question.

        Raises:
            RuntimeError: The process has ended. The message is the end of its log.
        """
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            end = self._log.read_text(errors="replace")[-_SHOWN:]
            raise RuntimeError(f"the process that asks diffusers has ended:\n{end}")
        answer = json.loads(line)
        if "error" in answer:
            return Outcome(error=answer["error"])
        return Outcome(images=np.load(answer["images"]))

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


@contextmanager
def asking(python: str, log: Path) -> Iterator[Truth]:
    """Start the process that asks diffusers, and end it."""
    truth = Truth(python, log)
    try:
        yield truth
    finally:
        truth.stop()


def ours(draft: Draft, cache_dir: Path) -> Outcome:
    """Return our images, or our error."""
    from tools.parity.fuzz.engine import generate

    try:
        return Outcome(images=generate(draft, cache_dir))
    except ImagefleetError as error:
        return Outcome(error=f"{type(error).__name__}: {error}")
    except Exception as error:
        return Outcome(error=f"{type(error).__name__}: {error}"[:500], crashed=True)


def run(
    cases: Sequence[str], truth: Truth, folder: Path, cache_dir: Path
) -> Iterator[tuple[Entry, Outcome]]:
    """Yield the entry of each case, and what diffusers answered."""
    for case in cases:
        place = folder / "case"
        draft = draw(place / "checkpoint", case)
        truth.ask(draft.describe())
        # If diffusers draws weights, ours must wait for them; otherwise both work at once.
        theirs = truth.answer() if draft.network else None
        mine = ours(draft, cache_dir)
        theirs = theirs or truth.answer()
        yield compare(case, mine, theirs, tuple(draft.changes)), theirs
        shutil.rmtree(place)
