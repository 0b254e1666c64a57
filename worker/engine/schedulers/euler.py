"""Euler and Euler ancestral (Karras et al. 2022, algorithm 2, without churn), as diffusers'
EulerDiscreteScheduler and EulerAncestralDiscreteScheduler.

diffusers keeps samples at x0 + sigma eps and divides before the model; we keep what the model sees.
There, a step of Euler is a step of DDIM between interpolated noise levels.
"""

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import Table, row, table
from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    Level,
    karras_ratios,
    moved,
    noise_ratios,
    ratios_at,
    timesteps_of,
)
from imagefleet.worker.engine.schedulers.noise_schedule import Floats, NoiseSchedule


def euler(noise: NoiseSchedule, steps: int, skipped: int = 0) -> Table:
    """`steps` calls of the model, less the `skipped` first ones."""
    timesteps = _timesteps(noise, steps)
    ratios = ratios_at(noise, timesteps)
    if noise.use_karras_sigmas:
        ratios = karras_ratios(ratios[0], ratios[-1], steps)
        timesteps = timesteps_of(noise, ratios)
    levels = [Level.of_ratio(ratio) for ratio in ratios]
    # Noise that is left at the end comes on top of the whole sample, as diffusers keeps it.
    last = CLEAN if noise.final_sigmas_type == "zero" else Level(1.0, noise_ratios(noise)[0])
    rows = []
    for timestep, start, end in zip(timesteps, levels, [*levels[1:], last], strict=True):
        keep, lag = moved(noise.prediction_type, start, end)
        rows.append(row(float(timestep), keep=keep, lags=(lag,)))
    scale = _initial_scale(noise, levels[0])
    return table(rows[skipped:], levels[skipped:], noise.prediction_type, scale)


def euler_ancestral(noise: NoiseSchedule, steps: int, skipped: int = 0) -> Table:
    """`steps` calls of the model, less the `skipped` first ones, with fresh noise after each."""
    timesteps = _timesteps(noise, steps)
    levels = [Level.of_ratio(ratio) for ratio in ratios_at(noise, timesteps)]
    rows = []
    for timestep, start, end in zip(timesteps, levels, [*levels[1:], CLEAN], strict=True):
        up = end.ratio * (1 - (end.ratio / start.ratio) ** 2) ** 0.5
        down = (end.ratio**2 - up**2) ** 0.5
        keep, lag = moved(noise.prediction_type, start, Level(end.alpha, end.alpha * down))
        rows.append(row(float(timestep), keep=keep, lags=(lag,), fresh=end.alpha * up))
    scale = _initial_scale(noise, levels[0])
    return table(rows[skipped:], levels[skipped:], noise.prediction_type, scale)


def _timesteps(noise: NoiseSchedule, steps: int) -> Floats:
    spacing = noise.timestep_spacing or "linspace"
    if spacing == "linspace":  # fractions of a timestep, here and nowhere else
        last = noise.num_train_timesteps - 1
        return np.linspace(0, last, steps, dtype=np.float32)[::-1].astype(np.float64)
    return noise.timesteps(steps, spacing).astype(np.float64)


def _initial_scale(noise: NoiseSchedule, first: Level) -> float:
    """With leading steps diffusers starts from noise alone, otherwise from what the level holds."""
    return 1.0 if noise.timestep_spacing == "leading" else first.sigma
