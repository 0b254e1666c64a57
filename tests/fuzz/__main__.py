"""`python -m tests.fuzz`: random and hostile input against one worker; print the ledger.

The exit code is 1 if anything broke. The offending cases are then in a file for `--replay`.
"""

import logging
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from tests.fuzz.cases import Case, WeightsCase, dump_cases, load_cases
from tests.fuzz.fleet import FuzzedFleet
from tests.fuzz.generate import RoundSize, draw_round
from tests.fuzz.hostile_server import HostileServers
from tests.fuzz.ledger import Ledger, Problem, suspects_first
from tests.fuzz.left_out import kind_left_out
from tests.fuzz.rounds import Round, reduce_cases
from tests.fuzz.weight_files import WeightsReader

_CASES_PER_ROUND: Final = 250
_REDUCING_STALL_S: Final = 30.0
_MAX_SHOWN: Final = 5


class Fuzzer:
    """The fuzzer runs rounds on one fleet, and starts a new fleet after each problem."""

    def __init__(self, folder: Path, seed: int, *, reduce: bool, everything: bool) -> None:
        self.ledger = Ledger()
        self.failures: list[Path] = []
        """Files of the cases that broke something."""
        self._folder, self._seed = folder, seed
        self._reduce, self._everything = reduce, everything
        self._fleets = 0
        self._fleet_stack = ExitStack()
        self._servers = HostileServers()

    def run(self, rounds: Iterator[Sequence[Case]], max_failures: int) -> None:
        """Run the rounds, until there are too many failures."""
        with self._servers, ExitStack() as last:
            last.callback(lambda: self._fleet_stack.close())
            weights = last.enter_context(WeightsReader())
            fleet = self._start_fleet()
            for number, drawn in enumerate(rounds):
                cases = drawn if self._everything else self._leave_out(drawn)
                problems = self._try(cases, fleet, weights)
                memory = f"worker {fleet.memory_mb('VmRSS'):.0f} MB"
                print(
                    f"round {number}: {len(cases)} cases, {len(problems)} problems, {memory}",
                    flush=True,
                )
                if problems:
                    self._record(cases, problems)
                    if len(self.failures) >= max_failures:
                        return
                    fleet = self._start_fleet()

    def _try(
        self, cases: Sequence[Case], fleet: FuzzedFleet, weights: WeightsReader
    ) -> list[Problem]:
        files = [case for case in cases if isinstance(case, WeightsCase)]
        others = [case for case in cases if not isinstance(case, WeightsCase)]
        problems = Round(fleet, self._servers, self.ledger).run(others) if others else []
        return problems + weights.check(files, self.ledger)

    def _leave_out(self, cases: Sequence[Case]) -> list[Case]:
        """Return the cases that are to be tried, and count the others."""
        kinds = [kind_left_out(case) for case in cases]
        for kind in filter(None, kinds):
            self.ledger.count("left out", kind.name)
        return [case for case, kind in zip(cases, kinds, strict=True) if kind is None]

    def _start_fleet(self) -> FuzzedFleet:
        self._fleet_stack.close()
        self._fleet_stack = ExitStack()
        self._fleets += 1
        folder = self._folder / f"fleet-{self._fleets}"
        return self._fleet_stack.enter_context(FuzzedFleet(folder))

    def _record(self, cases: Sequence[Case], problems: Sequence[Problem]) -> None:
        for problem in problems[:_MAX_SHOWN]:
            print(f"WRONG: {problem.sentence}", flush=True)
        self._fleet_stack.close()
        if self._reduce:
            cases = self._reduced(cases, problems)
        path = self._folder / f"failure-{self._seed}-{len(self.failures)}.json"
        sentences = [problem.sentence for problem in problems]
        dump_cases(cases, path, seed=self._seed, problems=sentences)
        self.failures.append(path)
        for case in cases[:3]:
            print(ascii(case)[:2_000], flush=True)
        print(f"{len(cases)} cases in {path}; try them with --replay {path}", flush=True)

    def _reduced(self, cases: Sequence[Case], problems: Sequence[Problem]) -> Sequence[Case]:
        """Return few cases that break something. Only what a worker was sent is searched."""
        named = suspects_first(cases, problems)
        if len(named) == 1 or all(isinstance(case, WeightsCase) for case in named):
            return named
        others = [case for case in cases if not isinstance(case, WeightsCase)]
        return reduce_cases(others, problems, self._servers, _REDUCING_STALL_S)


def draw_rounds(seed: int, sizes: RoundSize, seconds: float) -> Iterator[Sequence[Case]]:
    """Draw rounds that add up to `sizes`, and more until `seconds` have passed."""
    ends_at = time.monotonic() + seconds
    count = max(1, round(sizes.total / _CASES_PER_ROUND))
    size = sizes.divided(count)
    random_numbers = random.Random(seed)
    number = 0
    while number < count or time.monotonic() < ends_at:
        yield draw_round(random_numbers.getrandbits(32), size)
        number += 1


@click.command()
@click.option("--seed", type=int, default=None, help="Draw the cases of an earlier run.")
@click.option("--seconds", default=0.0, help="Run for at least so long.")
@click.option("--requests", default=10_000, show_default=True)
@click.option("--messages", default=2_000, show_default=True)
@click.option("--answers", default=1_000, show_default=True)
@click.option("--latents", default=1_000, show_default=True)
@click.option("--controls", default=1_000, show_default=True)
@click.option("--keys", default=1_000, show_default=True)
@click.option("--weights", default=1_000, show_default=True)
@click.option("--max-failures", default=3, show_default=True, help="Stop after so many.")
@click.option("--reduce/--no-reduce", default=True, help="Search for the offending case.")
@click.option("--everything", is_flag=True, help="Leave no kind of case out (left_out.py).")
@click.option("--replay", type=Path, default=None, help="Run only the cases of this file.")
@click.option("--folder", type=Path, default=None, help="Keep logs and Redis's files here.")
def main(
    seed: int | None,
    seconds: float,
    max_failures: int,
    reduce: bool,
    everything: bool,
    replay: Path | None,
    folder: Path | None,
    **sizes: int,
) -> None:
    logging.getLogger("imagefleet").setLevel(logging.ERROR)  # it warns of each damaged record
    seed = secrets.randbits(32) if seed is None else seed
    print(f"seed {seed}", flush=True)
    kept = folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
    kept.mkdir(parents=True, exist_ok=True)
    fuzzer = Fuzzer(kept, seed, reduce=reduce, everything=everything or replay is not None)
    if replay is None:
        fuzzer.run(draw_rounds(seed, RoundSize(**sizes), seconds), max_failures)
    else:
        fuzzer.run(iter([load_cases(replay)]), max_failures)
    print(f"seed {seed}\n\n{fuzzer.ledger.table()}\n")
    if fuzzer.failures:
        print(f"{len(fuzzer.failures)} failures; the files are in {kept}")
        sys.exit(1)
    print("no worker died, no claim was left, nothing goes round, nothing was lost")
    if folder is None:
        shutil.rmtree(kept)


if __name__ == "__main__":
    main()
