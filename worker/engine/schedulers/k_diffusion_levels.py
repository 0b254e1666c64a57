"""Make timesteps, noise levels and tables of the schedulers that diffusers took from k-diffusion.

These are Euler, Heun, DPM2 and linear multistep. Input: a noise schedule and a step count. Output:
timesteps, noise levels and tables. diffusers keeps their samples unscaled. This module uses numpy
only.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_table
from imagefleet.worker.engine.schedulers.noise_levels import (
    NoiseLevel,
    ratios_at,
    spaced_ratios,
    timesteps_at,
)
from imagefleet.worker.engine.schedulers.noise_schedule import Floats, NoiseSchedule


def sigma_levels(schedule: NoiseSchedule, steps: int) -> tuple[Floats, list[NoiseLevel]]:
    """Return the timestep and the noise level of each step."""
    timesteps = sigma_timesteps(schedule, steps)
    ratios = ratios_at(schedule, timesteps)
    if schedule.sigma_spacing is not None:
        ratios = spaced_ratios(schedule.sigma_spacing, ratios[0], ratios[-1], steps)
        timesteps = timesteps_at(schedule, ratios)
    return timesteps, [NoiseLevel.from_ratio(ratio) for ratio in ratios]


def sigma_timesteps(schedule: NoiseSchedule, steps: int) -> Floats:
    """Return the timesteps of `steps` steps, the noisiest first."""
    spacing = schedule.timestep_spacing or "linspace"
    if spacing == "linspace":  # only here are timesteps fractions
        last = schedule.num_train_timesteps - 1
        return np.linspace(0, last, steps, dtype=np.float32)[::-1].astype(np.float64)
    return schedule.timesteps(steps, spacing).astype(np.float64)


def make_sigma_table(
    schedule: NoiseSchedule,
    rows: list[list[float]],
    levels: Sequence[NoiseLevel],
    first: NoiseLevel,
    order: int = 1,
) -> CoefficientTable:
    """Complete the rows to a table, as `make_table`.

    Args:
        schedule: The checkpoint's.
        rows: From `make_row`.
        levels: The noise level before each row.
        first: The noise level before the first row of the whole table.
        order: See `CoefficientTable`.
    """
    # The standard deviation of the first sample is diffusers' init_noise_sigma, scaled.
    sigma = 1.0 if schedule.timestep_spacing == "leading" else first.sigma
    table = make_table(rows, levels, schedule.prediction_type, sigma)
    return replace(table, scales_input=True, order=order)
