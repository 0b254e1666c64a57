"""Euler and Euler ancestral (Karras et al. 2022, algorithm 2 without churn and without correction):
diffusers' EulerDiscreteScheduler and EulerAncestralDiscreteScheduler.

diffusers keeps samples as x0 + sigma eps and scales them before each call of the model. We keep
the scaled samples. In that form, an Euler step is a DDIM step between interpolated noise levels.
"""

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import Table, make_row, make_table
from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    NoiseLevel,
    ddim_transition,
    karras_ratios,
    ratios_at,
    timesteps_at,
    training_ratios,
)
from imagefleet.worker.engine.schedulers.noise_schedule import Floats, NoiseSchedule


def euler(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> Table:
    """Return the table for `steps` steps without the first `skipped`."""
    timesteps = _timesteps(schedule, steps)
    ratios = ratios_at(schedule, timesteps)
    if schedule.use_karras_sigmas:
        ratios = karras_ratios(ratios[0], ratios[-1], steps)
        timesteps = timesteps_at(schedule, ratios)
    levels = [NoiseLevel.from_ratio(ratio) for ratio in ratios]
    # Like diffusers, do not scale the sample down by the noise left at the end: alpha stays 1.
    last = (
        CLEAN
        if schedule.final_sigmas_type == "zero"
        else NoiseLevel(1.0, training_ratios(schedule)[0])
    )
    rows = []
    for timestep, start, end in zip(timesteps, levels, [*levels[1:], last], strict=True):
        keep, lag = ddim_transition(schedule.prediction_type, start, end)
        rows.append(make_row(float(timestep), keep=keep, lags=(lag,)))
    sigma = _init_noise_sigma(schedule, levels[0])
    return make_table(rows[skipped:], levels[skipped:], schedule.prediction_type, sigma)


def euler_ancestral(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> Table:
    """Return the table for `steps` steps without the first `skipped`.

    Each step but the last adds fresh noise.
    """
    timesteps = _timesteps(schedule, steps)
    levels = [NoiseLevel.from_ratio(ratio) for ratio in ratios_at(schedule, timesteps)]
    rows = []
    for timestep, start, end in zip(timesteps, levels, [*levels[1:], CLEAN], strict=True):
        up = end.ratio * (1 - (end.ratio / start.ratio) ** 2) ** 0.5
        down = (end.ratio**2 - up**2) ** 0.5
        keep, lag = ddim_transition(
            schedule.prediction_type, start, NoiseLevel(end.alpha, end.alpha * down)
        )
        rows.append(make_row(float(timestep), keep=keep, lags=(lag,), fresh=end.alpha * up))
    sigma = _init_noise_sigma(schedule, levels[0])
    return make_table(rows[skipped:], levels[skipped:], schedule.prediction_type, sigma)


def _timesteps(schedule: NoiseSchedule, steps: int) -> Floats:
    spacing = schedule.timestep_spacing or "linspace"
    if spacing == "linspace":  # only here are timesteps fractions
        last = schedule.num_train_timesteps - 1
        return np.linspace(0, last, steps, dtype=np.float32)[::-1].astype(np.float64)
    return schedule.timesteps(steps, spacing).astype(np.float64)


def _init_noise_sigma(schedule: NoiseSchedule, first: NoiseLevel) -> float:
    """Return the standard deviation of the first sample: diffusers' init_noise_sigma, scaled.

    With leading spacing it is 1, otherwise sigma of the first noise level.
    """
    return 1.0 if schedule.timestep_spacing == "leading" else first.sigma
