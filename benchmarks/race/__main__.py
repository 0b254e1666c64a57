"""Compare the engine with the tutorial's Flax pipeline and with PyTorch diffusers.

`python -m benchmarks.race --tutorial PYTHON --pytorch PYTHON [--steps 20] [--rounds 5]`: each
PYTHON is the interpreter of its own environment (`make race` builds both). The three peers use the
same checkpoint and the same noise. All stay up and generate in turn, round after round, so that
other work on the machine slows all of them. A ratio is the median over rounds of (peer's seconds /
ours); above 1 the engine is faster.

Then each peer runs a stream of jobs with different step counts, twice. "Known ahead": the jobs are
sorted, and the other two get batches of one step count, as they need; the tutorial compiles at each
new count. "As it comes": eight jobs arrive at a time. The engine takes them in one batch, the other
two in one batch for each step count among them; by now the tutorial has compiled all counts.

`--family z-image` and `--family klein` race with PyTorch diffusers alone, in batches of one step
count: a small transformer with flow matching, without guidance, and images of 128x128.

It does not show accelerators, large models, queues or storage.
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
FLOW_CASES = ((1, 1), (1, 8))
FLOW_STEPS = {"z-image": 8, "klein": 4}
FLOW_SIDE = 128
STREAM_COUNTS = (8, 12, 16, 20, 24, 28)


@dataclass
class Peer:
    process: "subprocess.Popen[str]"

    def generate(self, steps: Sequence[int], save: Path | None = None) -> dict[str, float]:
        """Measure the wall and CPU seconds of one batch."""
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
            raise SystemExit(f"{self.process.args!r} ended with {self.process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer


@contextmanager
def start_peer(command: Sequence[str], config: dict[str, Any]) -> Iterator[Peer]:
    process = subprocess.Popen(
        [*command, json.dumps(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if "RACE_VERBOSE" in os.environ else subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    try:
        found = Peer(process)
        found.await_ready()
        yield found
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


@contextmanager
def start_peers(
    commands: dict[str, list[str]], config: dict[str, Any]
) -> Iterator[dict[str, Peer]]:
    """Start all peers of one case. The engine comes first, because it writes the noise."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(start_peer(command, config))
            for name, command in commands.items()
        }


def equal_steps(peers: dict[str, Peer], batch: int, steps: int, rounds: int) -> dict[str, Any]:
    """Compare warm batches of one step count: times, ratios, and differences of the images."""
    with tempfile.TemporaryDirectory() as folder:
        images = {}
        for name, each in peers.items():
            path = Path(folder) / f"{name}.npy"
            each.generate([steps] * batch)
            each.generate([steps] * batch, save=path)
            images[name] = np.load(path).astype(int)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, each in peers.items():
            taken[name].append(each.generate([steps] * batch))
    figures: dict[str, Any] = {}
    for name in peers:
        apart = np.abs(images[name] - images[OURS])
        figures[name] = {
            "images_per_s": batch / statistics.median(t["wall_s"] for t in taken[name]),
            "cpu_s_a_batch": statistics.median(t["cpu_s"] for t in taken[name]),
            "ratio_wall": _ratio(taken[name], taken[OURS], "wall_s"),
            "ratio_cpu": _ratio(taken[name], taken[OURS], "cpu_s"),
            "mean_levels_apart": float(apart.mean()),
            "max_levels_apart": float(apart.max()),
        }
    return figures


def _ratio(theirs: list[dict[str, float]], ours: list[dict[str, float]], what: str) -> float:
    return statistics.median(t[what] / o[what] for t, o in zip(theirs, ours, strict=True))


def mixed_streams(peers: dict[str, Peer], batch: int, jobs: int) -> dict[str, dict[str, float]]:
    """Run a stream of jobs with mixed step counts. Return each peer's time divided by ours."""
    draw = random.Random(7)
    counts = [draw.choice(STREAM_COUNTS) for _ in range(jobs)]
    grouped = [
        [count] * batch for count in STREAM_COUNTS for _ in range(-(-counts.count(count) // batch))
    ]
    arrival_batches, of_one_count = _batches(counts, batch), []
    for arrival_batch in arrival_batches:
        of_one_count += [[count] * batch for count in sorted(set(arrival_batch))]
    return {
        "known ahead": _stream(peers, _batches(sorted(counts), batch), grouped),
        "as it comes": _stream(peers, arrival_batches, of_one_count),
    }


def _batches(counts: Sequence[int], batch: int) -> list[Sequence[int]]:
    return [counts[i : i + batch] for i in range(0, len(counts), batch)]


def _stream(
    peers: dict[str, Peer], ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
) -> dict[str, float]:
    seconds = {
        name: sum(each.generate(steps)["wall_s"] for steps in (ours if name == OURS else theirs))
        for name, each in peers.items()
    }
    return {name: value / seconds[OURS] for name, value in seconds.items()} | {
        "imagefleet_s": seconds[OURS]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tutorial", help="not for a family of flow models")
    parser.add_argument("--pytorch", required=True)
    parser.add_argument("--family", choices=tuple(FLOW_STEPS), help="by default Stable Diffusion")
    parser.add_argument("--channels", default="128,256,256")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=48, help="of the mixed stream")
    options = parser.parse_args()
    if not options.family and not options.tutorial:
        parser.error("--tutorial is missing")
    race = race_of_flow if options.family else race_of_stable_diffusion
    with tempfile.TemporaryDirectory() as scratch:
        about, results = race(options, Path(scratch))
    print()
    print_json("race", {**about, "rounds": options.rounds, "results": _rounded(results)})


def race_of_stable_diffusion(
    options: argparse.Namespace, scratch: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run all peers. Return what was raced, and the figures."""
    commands = {
        OURS: [sys.executable, "-m", "benchmarks.race.imagefleet_peer"],
        TUTORIAL: [options.tutorial, str(HERE / "tutorial_peer.py")],
        PYTORCH: [options.pytorch, str(HERE / "pytorch_peer.py")],
    }
    results: dict[str, Any] = {}
    checkpoint = scratch / "checkpoint"
    writer = [options.pytorch, str(HERE / "checkpoint.py"), str(checkpoint)]
    writer += ["--bundled", str(BUNDLED), "--channels", options.channels]
    subprocess.run(writer, check=True, stderr=subprocess.DEVNULL)
    for devices, batch in CASES:
        config = {
            "checkpoint": str(checkpoint),
            "noise": f"{scratch}/noise-{devices}-{batch}.npy",
            "devices": devices,
            "batch": batch,
            "guidance": 7.5,
            "max_steps": max(options.steps, *STREAM_COUNTS),
        }
        with start_peers(commands, config) as peers:
            case = f"{devices} devices, batch {batch}"
            results[case] = equal_steps(peers, batch, options.steps, options.rounds)
            _show(case, results[case])
            if (devices, batch) == (8, 8):
                streams = mixed_streams(peers, batch, options.jobs)
                results["mixed stream, times slower than ours"] = streams
                for name, stream in streams.items():
                    print(f"\n{options.jobs} jobs, {name}:", _rounded(stream), flush=True)
    return {"channels": options.channels, "steps": options.steps}, results


def race_of_flow(
    options: argparse.Namespace, scratch: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the engine and PyTorch on a flow model. Return what was raced, and the figures."""
    commands = {
        OURS: [sys.executable, "-m", "benchmarks.race.imagefleet_peer"],
        PYTORCH: [options.pytorch, str(HERE / "pytorch_peer.py")],
    }
    steps, checkpoint, results = FLOW_STEPS[options.family], scratch / "checkpoint", {}
    writer = [options.pytorch, "-m", "benchmarks.race.flow_checkpoint", str(checkpoint)]
    writer += ["--family", options.family]
    subprocess.run(writer, check=True, stderr=subprocess.DEVNULL, cwd=ROOT)
    for devices, batch in FLOW_CASES:
        config = {
            "checkpoint": str(checkpoint),
            "noise": f"{scratch}/noise-{devices}-{batch}.npy",
            "devices": devices,
            "batch": batch,
            "guidance": 0.0,
            "max_steps": steps,
            "side": FLOW_SIDE,
        }
        with start_peers(commands, config) as peers:
            case = f"{options.family}, batch {batch}"
            results[case] = equal_steps(peers, batch, steps, options.rounds)
            _show(case, results[case])
    return {"family": options.family, "steps": steps}, results


def _show(case: str, figures: dict[str, dict[str, float]]) -> None:
    names = list(figures[OURS])
    print(f"\n{case:>24}" + "".join(f"{name:>18}" for name in names))
    for peer_name, row in figures.items():
        print(f"{peer_name:>24}" + "".join(f"{row[name]:>18.3f}" for name in names), flush=True)


def _rounded(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _rounded(value) for name, value in tree.items()}
    return round(tree, 3) if isinstance(tree, float) else tree


if __name__ == "__main__":
    main()
