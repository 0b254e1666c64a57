"""DPM-Solver++ 2M (Lu et al. 2022, algorithm 2), as DPMSolverMultistepScheduler's defaults."""

import math

import numpy as np
from numpy.typing import NDArray

from worker.engine.schedulers.euler import level_of, noise_ratios
from worker.engine.schedulers.noise import CLEAN, Level, NoiseSchedule, clean_sample
from worker.engine.schedulers.table import Table, row, table


def dpmsolver(noise: NoiseSchedule, steps: int) -> Table:
    """`steps` calls of the model; h is the clean sample it predicts."""
    timesteps = _timesteps(noise, steps)
    ratios = np.interp(timesteps, np.arange(noise.num_train_timesteps), noise_ratios(noise))
    levels = [level_of(ratio) for ratio in ratios] + [CLEAN]
    rows = []
    for index, timestep in enumerate(timesteps):
        start, end = levels[index], levels[index + 1]
        width = _log_ratio(end) - _log_ratio(start)
        gain = -end.alpha * math.expm1(-width)
        lags: tuple[float, ...] = (gain,)
        if 0 < index < steps - 1:  # the first has no past, the last ends at no noise at all
            past = (_log_ratio(start) - _log_ratio(levels[index - 1])) / width
            lags = (gain * (1 + 0.5 / past), -gain * 0.5 / past)
        to_h = clean_sample(noise.prediction_type, start)
        rows.append(row(timestep, keep=end.sigma / start.sigma, lags=lags, to_h=to_h))
    return table(rows)


def _timesteps(noise: NoiseSchedule, steps: int) -> NDArray[np.int64]:
    train = noise.num_train_timesteps
    spacing = noise.timestep_spacing or "linspace"
    if spacing == "linspace":
        return np.linspace(0, train - 1, steps + 1).round()[:0:-1].astype(np.int64)
    if spacing == "leading":
        return np.arange(steps, 0, -1) * np.int64(train // (steps + 1)) + noise.steps_offset
    return noise.timesteps(steps, spacing)


def _log_ratio(level: Level) -> float:
    """Half the log of the signal-to-noise ratio; infinite without noise."""
    return math.log(level.alpha / level.sigma) if level.sigma else math.inf
