"""The protocol of the peers: one JSON object per line on standard input and output.

Three environments import this module, so it needs only numpy.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PROMPT = "a red circle on a blue background"


@dataclass
class RaceConfig:
    """The configuration of one case, which is the same for all peers."""

    checkpoint: Path
    noise: Path
    """A .npy file, float32 `[batch, h, w, c]`. The imagefleet peer writes it for the others."""
    devices: int
    batch: int
    guidance: float
    max_steps: int
    side: int | None = None
    """Height and width in pixels. None: the model's native size."""

    @classmethod
    def from_argument(cls) -> "RaceConfig":
        parser = argparse.ArgumentParser(description="A peer of benchmarks.race, which starts it.")
        parser.add_argument("config", type=json.loads, metavar="JSON", help="Fields of RaceConfig.")
        given = parser.parse_args().config
        given |= {name: Path(given[name]) for name in ("checkpoint", "noise")}
        return cls(**given)

    def latents(self) -> Any:
        return np.load(self.noise)

    def prompts(self) -> list[str]:
        """Return the prompts of a batch, of which no two are equal."""
        return [f"{PROMPT}, number {slot}" for slot in range(self.batch)]


Generate = Callable[[Sequence[int]], Any]
"""A function from the step counts of a full batch to its images, uint8 `[batch, H, W, 3]`."""


def serve(generate: Generate) -> None:
    """Answer requests until standard input ends.

    A request has `steps`, the step count of each image, and may have `save`, a file for the images.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        images = generate(request["steps"])
        taken = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        if request.get("save"):
            np.save(request["save"], np.asarray(images))
        print(json.dumps(taken), file=answers, flush=True)
