"""Latent consistency sampling (Luo et al. 2023, algorithm 3), as diffusers' LCMScheduler."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.schedulers.coefficients import Table, row, table
from imagefleet.worker.engine.schedulers.noise_levels import CLEAN, Level, clean_sample
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule

_SIGMA_DATA: Final = 0.5


def lcm(noise: NoiseSchedule, steps: int, skipped: int = 0) -> Table:
    """`steps` calls of the model, less the `skipped` first ones; h is the clean sample, and each
    step but the last puts fresh noise on what it made of it."""
    visited = _timesteps(noise, steps)[skipped:]
    levels = [Level.of(noise.alphas_cumprod[timestep]) for timestep in visited]
    rows = []
    for index, (timestep, level) in enumerate(zip(visited, levels, strict=True)):
        scaled = timestep * noise.lcm.timestep_scaling
        skip = _SIGMA_DATA**2 / (scaled**2 + _SIGMA_DATA**2)
        out = scaled / (scaled**2 + _SIGMA_DATA**2) ** 0.5
        is_last = index == len(visited) - 1
        end = CLEAN if is_last else levels[index + 1]
        rows.append(
            row(
                timestep,
                to_h=clean_sample(noise.prediction_type, level),
                bound=noise.clip_bound,
                keep=end.alpha * skip,
                lags=(end.alpha * out,),
                fresh=end.sigma,
            )
        )
    return table(rows, levels, noise.prediction_type)


def _timesteps(noise: NoiseSchedule, steps: int) -> NDArray[np.int64]:
    """A choice of the timesteps it was distilled at. Where more are asked for than there are,
    diffusers raises; here the model is asked in between."""
    original = max(noise.lcm.original_inference_steps, steps)
    distilled = np.arange(original, 0, -1) * (noise.num_train_timesteps // original) - 1
    return distilled[np.linspace(0, original, steps, endpoint=False).astype(np.int64)]
