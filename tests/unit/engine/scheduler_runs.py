"""Run the tables of schedulers with a formula in place of the network, as diffusers was run.

`tools/parity/samplers.py` made the samples that they are held to.
"""

from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from imagefleet.worker.engine.schedulers import coefficients
from tests.unit.engine.parity import FOLDER


@dataclass(frozen=True, kw_only=True)
class SchedulerRuns:
    """It has diffusers' samples by case, and the tensors that all runs start from."""

    expected: dict[str, NDArray[Any]]
    start: NDArray[Any]
    clean: NDArray[Any]
    fresh: NDArray[Any]

    @classmethod
    def read(cls, file: str) -> Self:
        """Read a file of tests/fixtures/parity."""
        tensors = load_file(FOLDER / file)
        start, clean, fresh = (tensors.pop(name) for name in ("start", "clean", "fresh"))
        return cls(expected=tensors, start=start, clean=clean, fresh=fresh)

    def samples(self, table: coefficients.CoefficientTable, *, from_image: bool) -> Any:
        """Return the samples after every row, with the noise of the fixtures."""
        x = self.start * np.float32(table.init_noise_sigma)
        if from_image:
            alpha, sigma = np.float32(table.start.alpha), np.float32(table.start.sigma)
            x = (alpha * self.clean + sigma * self.start).astype(np.float32)
        history = np.zeros((1, coefficients.LAGS - 1, *x.shape[1:]), np.float32)
        step, fresh, samples = jax.jit(coefficients.step), iter(self.fresh), []
        for row in table.rows:
            output = _model(np.asarray(x), float(row[0]))
            noise = next(fresh) if row[coefficients.FRESH] else np.zeros_like(x)
            x, history = step(x, output, history, noise, row[None])
            samples.append(np.asarray(x))
        return np.stack(samples)


def _model(x: Any, timestep: float) -> Any:
    """Compute the formula that replaces the network, as in tools/parity/samplers.py."""
    mixed = 0.7 * x + 0.3 * np.roll(x, 1, -1)
    return (np.tanh(mixed) * (0.5 + timestep / 1000)).astype(np.float32)
