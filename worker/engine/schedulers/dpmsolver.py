"""DPM-Solver++ of first and second order (Lu et al. 2022, algorithm 2) and its SDE variant:
diffusers' DPMSolverMultistepScheduler."""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import Table, make_row, make_table
from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    NoiseLevel,
    karras_ratios,
    ratios_at,
    timesteps_at,
    training_ratios,
    x0_from_output,
)
from imagefleet.worker.engine.schedulers.noise_schedule import DpmOptions, Floats, NoiseSchedule

_FEW_STEPS: Final = 15
"""With fewer steps, the last one is of first order, unless `lower_order_final` is false."""


def dpmsolver(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> Table:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted x0."""
    timesteps, ratios = _timesteps_and_ratios(schedule, steps)
    # `lambda_min_clipped` may already have removed the first timesteps.
    skipped = min(skipped, len(timesteps) - 1)
    last = (
        CLEAN
        if schedule.final_sigmas_type == "zero"
        else NoiseLevel.from_ratio(training_ratios(schedule)[0])
    )
    levels = [*(NoiseLevel.from_ratio(ratio) for ratio in ratios), last]
    rows = []
    for index in range(skipped, len(timesteps)):
        start, end = levels[index], levels[index + 1]
        first_order = index == skipped or _options(schedule).solver_order == 1
        if index == len(timesteps) - 1:
            first_order |= _ends_in_first_order(schedule, len(timesteps))
        previous = None if first_order else levels[index - 1]
        keep, lags, fresh = _coefficients(_options(schedule), previous, start, end)
        to_h = x0_from_output(schedule.prediction_type, start)
        rows.append(make_row(timesteps[index], keep=keep, lags=lags, to_h=to_h, fresh=fresh))
    return make_table(rows, levels[skipped:-1], schedule.prediction_type)


def dpmsolver_karras(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> Table:
    """Return the table of `dpmsolver` with the noise levels of Karras et al. 2022."""
    return dpmsolver(replace(schedule, use_karras_sigmas=True), steps, skipped)


def _coefficients(
    options: DpmOptions, previous: NoiseLevel | None, start: NoiseLevel, end: NoiseLevel
) -> tuple[float, tuple[float, ...], float]:
    """Return A, the B's and S of a step from `start` to `end` (see `coefficients`).

    `previous` is the noise level before the previous row; without it, the step is of first order.
    In the notation of Lu et al. 2022, width is h and gain is -alpha (e^-h - 1). slope is the weight
    of the difference between this and the previous predicted x0.
    """
    width = _log_ratio(end) - _log_ratio(start)
    keep, fresh = end.sigma / start.sigma, 0.0
    if options.stochastic:
        keep *= math.exp(-width)
        fresh = end.sigma * math.sqrt(-math.expm1(-2 * width))
    # The SDE doubles the width, but only inside the exponentials.
    span = 2 * width if options.stochastic else width
    gain = -end.alpha * math.expm1(-span)
    if previous is None:
        return keep, (gain,), fresh
    slope = 0.5 * gain
    if options.solver_type == "heun":
        slope = end.alpha * (math.expm1(-span) / span + 1)
    slope *= width / (_log_ratio(start) - _log_ratio(previous))
    return keep, (gain + slope, -slope), fresh


def _options(schedule: NoiseSchedule) -> DpmOptions:
    """Return the options.

    Raises:
        ValueError: The registry does not offer this scheduler with this schedule.
    """
    if schedule.dpm is None:
        raise ValueError("DPM-Solver++ is not supported with the options of this schedule")
    return schedule.dpm


def _ends_in_first_order(schedule: NoiseSchedule, steps: int) -> bool:
    few = _options(schedule).lower_order_final and steps < _FEW_STEPS
    return _options(schedule).euler_at_final or few or schedule.final_sigmas_type == "zero"


def _timesteps_and_ratios(schedule: NoiseSchedule, steps: int) -> tuple[Floats, Floats]:
    """Return the timesteps for the model, and sigma / alpha at each."""
    if not schedule.use_karras_sigmas:
        timesteps = _timesteps(schedule, steps)
        return timesteps, ratios_at(schedule, timesteps)
    trained = training_ratios(schedule)
    ratios = karras_ratios(trained[-1], trained[0], steps)
    exact = timesteps_at(schedule, ratios)
    # Like diffusers, which rounds down for this beta schedule only.
    rounds_down = schedule.beta_schedule == "squaredcos_cap_v2"
    return np.asarray(np.floor(exact) if rounds_down else exact.round(), np.float64), ratios


def _timesteps(schedule: NoiseSchedule, steps: int) -> Floats:
    """Return all but the last of `steps + 1` timesteps, spaced as in `NoiseSchedule.timesteps`.

    If there are nearly as many steps as training timesteps, some are fractions.
    """
    train = schedule.num_train_timesteps
    # -log(ratio) is lambda of the paper. Timesteps with lambda below the bound are left out.
    clipped = int(
        (-np.log(training_ratios(schedule)) < _options(schedule).lambda_min_clipped).sum()
    )
    last = train - clipped
    spacing = schedule.timestep_spacing or "linspace"
    if spacing == "linspace":
        exact = np.linspace(0, last - 1, steps + 1)[:0:-1]
        return np.asarray(exact.round() if steps < last else exact, np.float64)
    if spacing == "leading":
        stride = last // (steps + 1) or last / (steps + 1)
        offset = min(schedule.steps_offset, train - 1 - steps * stride)
        return np.arange(steps, 0.0, -1) * stride + offset
    return np.arange(last, 0.5, -train / steps).round() - 1


def _log_ratio(level: NoiseLevel) -> float:
    """Return lambda of the paper: log(alpha / sigma), infinite without noise."""
    return math.log(level.alpha / level.sigma) if level.sigma else math.inf
