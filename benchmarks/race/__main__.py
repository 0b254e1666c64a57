"""The engine against the tutorial's pipeline and against PyTorch diffusers: one checkpoint, one
noise, one run.

`python -m benchmarks.race --tutorial PYTHON --pytorch PYTHON [--steps 20] [--rounds 5]`, each
PYTHON of an environment of its own (`make race` builds them). Every racer stays up and paints in
turn, round after round, so that what else the machine does falls on all of them; a ratio is the
median over rounds of (peer's seconds / ours). Above 1 we are faster.

Then a stream of jobs whose step counts differ, twice. Known ahead: everybody gets it sorted, the
others in batches of one count, as they need them; the tutorial compiles at each new count. As it
comes, eight jobs at a time: ours takes them in one batch, the others in one for each count among
the eight; by now the tutorial has compiled them all.

What it does not show: accelerators, large models, queue and storage.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import print_json

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BUNDLED = ROOT / "worker" / "bundled" / "shapes"
OURS, TUTORIAL, PYTORCH = "imagefleet", "tutorial", "pytorch"
CASES = ((1, 8), (8, 8), (1, 1))
"""(devices, batch)"""
STREAM_COUNTS = (8, 12, 16, 20, 24, 28)


@dataclass
class Racer:
    process: "subprocess.Popen[str]"

    def paint(self, steps: Sequence[int], save: Path | None = None) -> dict[str, float]:
        """Seconds on the wall and of CPU for one batch."""
        return self._ask({"steps": list(steps), "save": str(save) if save else None})

    def await_ready(self) -> None:
        self._answer()

    def _ask(self, question: dict[str, Any]) -> dict[str, float]:
        assert self.process.stdin is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[:2]} ended with {self.process.wait()}")  # type: ignore[index]
        answer: dict[str, float] = json.loads(line)
        return answer


@contextmanager
def racer(command: Sequence[str], course: dict[str, Any]) -> Iterator[Racer]:
    process = subprocess.Popen(
        [*command, json.dumps(course)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if "RACE_VERBOSE" in os.environ else subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    try:
        found = Racer(process)
        found.await_ready()
        yield found
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


@contextmanager
def field(commands: dict[str, list[str]], course: dict[str, Any]) -> Iterator[dict[str, Racer]]:
    """All racers of one case, ours first: it draws the noise."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(racer(command, course)) for name, command in commands.items()
        }


def equal_steps(racers: dict[str, Racer], batch: int, steps: int, rounds: int) -> dict[str, Any]:
    """Warm batches of one step count: seconds, ratios, and how far the pictures are apart."""
    with tempfile.TemporaryDirectory() as folder:
        pictures = {}
        for name, each in racers.items():
            path = Path(folder) / f"{name}.npy"
            each.paint([steps] * batch)
            each.paint([steps] * batch, save=path)
            pictures[name] = np.load(path).astype(int)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in racers}
    for _ in range(rounds):
        for name, each in racers.items():
            taken[name].append(each.paint([steps] * batch))
    figures: dict[str, Any] = {}
    for name in racers:
        apart = np.abs(pictures[name] - pictures[OURS])
        figures[name] = {
            "pictures_per_s": batch / statistics.median(t["wall_s"] for t in taken[name]),
            "cpu_s_a_batch": statistics.median(t["cpu_s"] for t in taken[name]),
            "ratio_wall": _ratio(taken[name], taken[OURS], "wall_s"),
            "ratio_cpu": _ratio(taken[name], taken[OURS], "cpu_s"),
            "mean_levels_apart": float(apart.mean()),
            "max_levels_apart": float(apart.max()),
        }
    return figures


def _ratio(theirs: list[dict[str, float]], ours: list[dict[str, float]], what: str) -> float:
    return statistics.median(t[what] / o[what] for t, o in zip(theirs, ours, strict=True))


def mixed_streams(racers: dict[str, Racer], batch: int, jobs: int) -> dict[str, dict[str, float]]:
    """Seconds for a stream of jobs with mixed step counts, and how often ours is faster."""
    draw = random.Random(7)
    counts = [draw.choice(STREAM_COUNTS) for _ in range(jobs)]
    grouped = [
        [count] * batch for count in STREAM_COUNTS for _ in range(-(-counts.count(count) // batch))
    ]
    eights, of_one_count = _eights(counts, batch), []
    for eight in eights:
        of_one_count += [[count] * batch for count in sorted(set(eight))]
    return {
        "known ahead": _stream(racers, _eights(sorted(counts), batch), grouped),
        "as it comes": _stream(racers, eights, of_one_count),
    }


def _eights(counts: Sequence[int], batch: int) -> list[Sequence[int]]:
    return [counts[i : i + batch] for i in range(0, len(counts), batch)]


def _stream(
    racers: dict[str, Racer], ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
) -> dict[str, float]:
    seconds = {
        name: sum(each.paint(steps)["wall_s"] for steps in (ours if name == OURS else theirs))
        for name, each in racers.items()
    }
    return {name: value / seconds[OURS] for name, value in seconds.items()} | {
        "imagefleet_s": seconds[OURS]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tutorial", required=True)
    parser.add_argument("--pytorch", required=True)
    parser.add_argument("--channels", default="128,256,256")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=48, help="of the mixed stream")
    given = parser.parse_args()
    commands = {
        OURS: [sys.executable, "-m", "benchmarks.race.imagefleet_peer"],
        TUTORIAL: [given.tutorial, str(HERE / "tutorial_peer.py")],
        PYTORCH: [given.pytorch, str(HERE / "pytorch_peer.py")],
    }
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch) / "checkpoint"
        writer = [given.pytorch, str(HERE / "checkpoint.py"), str(checkpoint)]
        writer += ["--bundled", str(BUNDLED), "--channels", given.channels]
        subprocess.run(writer, check=True, stderr=subprocess.DEVNULL)
        for devices, batch in CASES:
            course = {
                "checkpoint": str(checkpoint),
                "noise": f"{scratch}/noise-{devices}-{batch}.npy",
                "devices": devices,
                "batch": batch,
                "guidance": 7.5,
                "max_steps": max(given.steps, *STREAM_COUNTS),
            }
            with field(commands, course) as racers:
                case = f"{devices} devices, batch {batch}"
                results[case] = equal_steps(racers, batch, given.steps, given.rounds)
                _show(case, results[case])
                if (devices, batch) == (8, 8):
                    streams = mixed_streams(racers, batch, given.jobs)
                    results["mixed stream, times slower than ours"] = streams
                    for name, stream in streams.items():
                        print(f"\n{given.jobs} jobs, {name}:", _rounded(stream), flush=True)
    about = {"channels": given.channels, "steps": given.steps, "rounds": given.rounds}
    print()
    print_json("race", {**about, "results": _rounded(results)})


def _show(case: str, figures: dict[str, dict[str, float]]) -> None:
    names = list(figures[OURS])
    print(f"\n{case:>24}" + "".join(f"{name:>18}" for name in names))
    for racer_name, row in figures.items():
        print(f"{racer_name:>24}" + "".join(f"{row[name]:>18.3f}" for name in names), flush=True)


def _rounded(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _rounded(value) for name, value in tree.items()}
    return round(tree, 3) if isinstance(tree, float) else tree


if __name__ == "__main__":
    main()
