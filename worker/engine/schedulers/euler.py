"""Make tables of Euler and Euler ancestral (Karras et al. 2022, algorithm 2 without churn and
without correction): diffusers' EulerDiscreteScheduler and EulerAncestralDiscreteScheduler.

diffusers keeps samples as x0 + sigma eps and scales them before each call of the model. We keep
the scaled samples. In that form, an Euler step is a DDIM step between interpolated noise levels.
"""

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row
from imagefleet.worker.engine.schedulers.k_diffusion_levels import (
    make_sigma_table,
    sigma_levels,
    sigma_timesteps,
)
from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    NoiseLevel,
    ddim_transition,
    ratios_at,
    training_ratios,
)
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule


def euler(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`."""
    timesteps, levels = sigma_levels(schedule, steps)
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
    return make_sigma_table(schedule, rows[skipped:], levels[skipped:], levels[0])


def euler_ancestral(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`.

    Each step but the last adds fresh noise.
    """
    timesteps = sigma_timesteps(schedule, steps)
    levels = [NoiseLevel.from_ratio(ratio) for ratio in ratios_at(schedule, timesteps)]
    rows = []
    for timestep, start, end in zip(timesteps, levels, [*levels[1:], CLEAN], strict=True):
        up = end.ratio * (1 - (end.ratio / start.ratio) ** 2) ** 0.5
        down = (end.ratio**2 - up**2) ** 0.5
        keep, lag = ddim_transition(
            schedule.prediction_type, start, NoiseLevel(end.alpha, end.alpha * down)
        )
        rows.append(make_row(float(timestep), keep=keep, lags=(lag,), fresh=end.alpha * up))
    return make_sigma_table(schedule, rows[skipped:], levels[skipped:], levels[0])
