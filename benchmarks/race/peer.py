"""How a racer speaks: one JSON object a line in, one out. Imported in three environments, so it
needs none of them.
"""

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
class Course:
    """What all racers get: the same checkpoint, the same noise, so many devices."""

    checkpoint: Path
    noise: Path
    """float32 `[batch, h, w, c]`, .npy; written by imagefleet, read by the others."""
    devices: int
    batch: int
    guidance: float
    max_steps: int

    @classmethod
    def from_argument(cls) -> "Course":
        given = json.loads(sys.argv[1])
        given |= {name: Path(given[name]) for name in ("checkpoint", "noise")}
        return cls(**given)

    def latents(self) -> Any:
        return np.load(self.noise)


Paint = Callable[[Sequence[int]], Any]
"""Steps of each picture of a full batch to uint8 `[batch, H, W, 3]`."""


def serve(paint: Paint) -> None:
    """Answer until standard input ends. `steps`: of each picture; `save`: where the pictures go."""
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        pictures = paint(asked["steps"])
        taken = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        if asked.get("save"):
            np.save(asked["save"], np.asarray(pictures))
        print(json.dumps(taken), file=answers, flush=True)
