"""The other processes of a run: those that ask, and the one that stores."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from imagefleet.shared.redis_client.child_process import die_with_parent
from tests.chaos.orders import Order, Producer, write

ROOT: Final = Path(__file__).parents[2]
PUTS: Final = "puts"
"""Among the kinds of faults: the puts there were in all."""


class Producers:
    """One process for each kind of producer."""

    def __init__(
        self,
        orders: Sequence[Order],
        environment: Mapping[str, str],
        folder: Path,
        module: str = "tests.chaos.producers",
    ) -> None:
        path = folder / "orders.jsonl"
        write(orders, path)
        self._journals = {kind: folder / f"accepted by {kind}" for kind in Producer}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, kind.value, path, journal],
                cwd=ROOT,
                env={**os.environ, **environment},
                preexec_fn=die_with_parent(),
            )
            for kind, journal in self._journals.items()
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def done(self) -> bool:
        codes = [process.poll() for process in self._processes]
        assert not any(codes), f"producers ended with {codes}"
        return None not in codes

    def accepted(self) -> list[str]:
        return [job_id for path in self._journals.values() for job_id in path.read_text().split()]


class Bucket:
    """The S3 process; see `tests.chaos.bucket`."""

    def __init__(self, seed: int, log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.bucket", str(seed)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=die_with_parent(),
            )
        addresses = json.loads(self._answer())
        self.url: str = addresses["url"]
        self.honest_url: str = addresses["honest_url"]
        self.environment: dict[str, str] = addresses["environment"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def faults(self) -> dict[str, int]:
        """How many there were, by kind, and of how many puts."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return dict(json.loads(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()
