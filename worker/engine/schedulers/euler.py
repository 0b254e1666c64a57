"""Euler's method (Karras et al. 2022, algorithm 2 without churn), as EulerDiscreteScheduler.

diffusers keeps samples at x0 + sigma eps and divides before the model; we keep what the model sees.
There, a step of Euler is a step of DDIM between interpolated noise levels.
"""

import numpy as np

from worker.engine.schedulers.noise import CLEAN, Floats, Level, NoiseSchedule, moved
from worker.engine.schedulers.table import Table, row, table


def euler(noise: NoiseSchedule, steps: int) -> Table:
    """`steps` calls of the model."""
    spacing = noise.timestep_spacing or "linspace"
    if spacing == "linspace":  # fractions of a timestep, here and nowhere else
        timesteps = np.linspace(0, noise.num_train_timesteps - 1, steps, dtype=np.float32)[::-1]
    else:
        timesteps = noise.timesteps(steps, spacing).astype(np.float32)
    ratios = np.interp(timesteps, np.arange(noise.num_train_timesteps), noise_ratios(noise))
    levels = [level_of(ratio) for ratio in ratios] + [CLEAN]
    rows = []
    for timestep, start, end in zip(timesteps, levels[:-1], levels[1:], strict=True):
        keep, lag = moved(noise.prediction_type, start, end)
        rows.append(row(float(timestep), keep=keep, lags=(lag,)))
    # With leading steps diffusers starts from noise alone, otherwise from what the level holds.
    return table(rows, 1.0 if spacing == "leading" else levels[0].sigma)


def noise_ratios(noise: NoiseSchedule) -> Floats:
    """sigma / alpha at each training timestep."""
    kept = noise.alphas_cumprod.copy()
    if noise.rescale_betas_zero_snr:
        kept[-1] = 2**-24  # as diffusers does, or the ratio would be infinite
    return np.asarray(((1 - kept) / kept) ** 0.5, np.float64)


def level_of(ratio: float) -> Level:
    """From sigma / alpha."""
    alpha = 1 / (float(ratio) ** 2 + 1) ** 0.5
    return Level(alpha, float(ratio) * alpha)
