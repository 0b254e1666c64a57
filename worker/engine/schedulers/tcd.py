"""Make tables of trajectory consistency sampling (Zheng et al. 2024) without noise: diffusers'
TCDScheduler as its pipelines call it, with eta=0."""

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row, make_table
from imagefleet.worker.engine.schedulers.lcm import distilled_timesteps
from imagefleet.worker.engine.schedulers.noise_levels import NoiseLevel, ddim_transition
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule


def tcd(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the model's output.

    As in diffusers, the last step ends at the first training timestep, which has a little noise.
    """
    timesteps = distilled_timesteps(schedule, steps)[skipped:]
    levels = [
        NoiseLevel.from_alpha_cumprod(schedule.alphas_cumprod[timestep])
        for timestep in (*timesteps, 0)
    ]
    rows = []
    for timestep, start, end in zip(timesteps, levels, levels[1:], strict=False):
        keep, lag = ddim_transition(schedule.prediction_type, start, end)
        rows.append(make_row(float(timestep), keep=keep, lags=(lag,)))
    return make_table(rows, levels[:-1], schedule.prediction_type)
