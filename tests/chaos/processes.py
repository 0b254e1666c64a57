"""The producer processes and the S3 process of a chaos run."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from imagefleet.shared.process.child_process import die_with_parent
from tests.chaos.planned_jobs import PlannedJob, ProducerKind, write

ROOT: Final = Path(__file__).parents[2]
PUTS: Final = "puts"
"""The key for the number of all puts, among the counts of faults."""


class ProducerProcess:
    """`python -m MODULE ARGUMENTS… JOURNAL`, with these settings in its environment."""

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], journal: Path
    ) -> None:
        self.journal = journal
        """The file in which it writes what the fleet accepted."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, str(journal)],
            cwd=ROOT,
            env={**os.environ, **environment},
            preexec_fn=die_with_parent(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def done(self) -> bool:
        """Whether it has ended. Raise AssertionError if it failed."""
        code = self._process.poll()
        assert not code, f"the producer that writes {self.journal} ended with {code}"
        return code is not None


class Producers:
    """The producer processes, one for each kind of producer that has jobs."""

    def __init__(
        self,
        planned: Sequence[PlannedJob],
        environment: Mapping[str, str],
        folder: Path,
        module: str = "tests.chaos.producer_process",
    ) -> None:
        self._stack = ExitStack()
        path = folder / "planned.jsonl"
        write(planned, path)
        self._processes = [
            ProducerProcess(
                module, [kind.value, str(path)], environment, folder / f"accepted by {kind}"
            )
            for kind in ProducerKind
            if any(job.producer is kind for job in planned)
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            self._stack.enter_context(process)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def done(self) -> bool:
        """Whether all have ended. Raise AssertionError if one failed."""
        done = [process.done() for process in self._processes]
        return all(done)

    def accepted(self) -> list[str]:
        """Return the ids of the jobs that the fleet accepted."""
        texts = [process.journal.read_text() for process in self._processes]
        return [job_id for text in texts for job_id in text.split()]


class FaultyS3Process:
    """The S3 process. See `tests.chaos.faulty_s3`."""

    def __init__(self, seed: int, log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.faulty_s3", str(seed)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=die_with_parent(),
            )
        addresses = json.loads(self._answer())
        self.url: str = addresses["url"]
        self.direct_url: str = addresses["direct_url"]
        self.environment: dict[str, str] = addresses["environment"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def faults(self) -> dict[str, int]:
        """Return the number of faults by kind, and the number of puts under `PUTS`."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return dict(json.loads(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def environ(more: Mapping[str, str]) -> Iterator[None]:
    """Add variables to the environment of this process, for a while."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
