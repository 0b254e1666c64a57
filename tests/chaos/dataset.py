"""Make a dataset during a chaos run, by a command that is started again after each kill.

Input: the number of its rows. Output: what is wrong with its files at the end.
"""

import os
import random
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from imagefleet.producer.commands.bulk_output import EXIT_INCOMPLETE
from imagefleet.shared.process.child_process import die_with_parent
from tests.chaos.audit import AuditReport
from tests.chaos.processes import ROOT

_SHARD_SIZE: Final = 10


class Dataset:
    """It is a dataset of some rows with one image each. With 0 rows no command is started."""

    def __init__(self, rows: int, environment: Mapping[str, str], folder: Path) -> None:
        self._rows = rows
        self._environment = {**os.environ, **environment}
        self._folder = folder.resolve()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        prompts = (f"row {row} of a dataset\n" for row in range(self._rows))
        self._prompts.write_text("".join(prompts))
        self.refill()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def _prompts(self) -> Path:
        return self._folder / "prompts.txt"

    @property
    def _destination(self) -> Path:
        return self._folder / "made"

    def refill(self) -> None:
        """Start the command again if it was killed, or ended because Redis was away. Rows may have
        failed because workers died with them, which they did not cause: they are tried again."""
        if self._rows and (self._process is None or self._process.poll()):
            if self._process is not None and self._process.poll() == EXIT_INCOMPLETE:
                self._start("retry-failed", self._destination.as_uri()).wait()
            self._process = self._start(
                "run", str(self._prompts), self._destination.as_uri(), "--shard-size", _SHARD_SIZE
            )

    def kill(self, _rng: random.Random) -> bool:
        """Kill the command with SIGKILL, if it runs. Return whether it did."""
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.kill()
        self._process.wait()
        return True

    def done(self) -> bool:
        """Return whether the command has ended well: the dataset is complete."""
        return not self._rows or (self._process is not None and self._process.poll() == 0)

    def audit(self, report: AuditReport) -> None:
        """Verify the dataset as a user does, and count its rows in its files."""
        if not self._rows:
            return
        section = "dataset"
        found = Counter(
            name.removesuffix(".png")
            for archive in self._destination.glob("[0-9]*.tar")
            for name in _names_in(archive)
            if name.endswith(".png")
        )
        planned = {f"{row:09d}-00" for row in range(self._rows)}
        report.note(section, "rows", self._rows)
        report.expect_none(section, "lost", planned - found.keys())
        report.expect_none(section, "of no row", found.keys() - planned)
        report.expect_none(section, "doubled", [name for name, times in found.items() if times > 1])
        code = self._start("verify", self._destination.as_uri()).wait()
        report.expect_none(section, "exit codes of `bulk verify`", [code] if code else [])

    def _start(self, *words: object) -> subprocess.Popen[bytes]:
        with (self._folder / "command.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "imagefleet.producer", "bulk", *map(str, words)],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(),
            )


def _names_in(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return tar.getnames()
