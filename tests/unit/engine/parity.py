"""Load the checkpoints in tests/fixtures/parity with the results of PyTorch diffusers.

`tools/make_parity_fixtures.py` wrote them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import load_file

from imagefleet.worker.engine.build_engine import load_networks
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.diffusion_programs import DiffusionPrograms, Weights
from imagefleet.worker.engine.mesh import Placement

FOLDER = Path(__file__).parents[2] / "fixtures" / "parity"
PROMPTS = ["a red circle on blue", "Zwölf  Bücher, 3 for €5!", ""]


@dataclass(frozen=True)
class Oracle:
    """A checkpoint loaded by our engine, and PyTorch's results for it."""

    files: CheckpointFiles
    configs: Configs
    programs: DiffusionPrograms
    weights: Weights
    answers: dict[str, NDArray[Any]]

    @classmethod
    def read(cls, name: str) -> "Oracle":
        folder = FOLDER / name
        files = CheckpointFiles(folder)
        configs = Configs.read(files)
        programs, weights = load_networks(files, configs, Placement.of(1), np.dtype(np.float32))
        return cls(files, configs, programs, weights, load_file(folder / "expected.safetensors"))

    def image(self, key: str) -> NDArray[Any]:
        """Return a result of PyTorch's layout `[…, c, h, w]` with channels last."""
        return np.moveaxis(self.answers[key], -3, -1)


def worst(ours: ArrayLike, theirs: NDArray[Any]) -> float:
    """Return the largest difference relative to the largest value."""
    mine = np.asarray(ours, np.float64)
    assert mine.shape == theirs.shape
    return float(np.abs(mine - theirs).max() / np.abs(theirs).max())
