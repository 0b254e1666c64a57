"""Make tables of DPM-Solver++ of first to third order (Lu et al. 2022, algorithm 2) and its SDE
variant: diffusers' DPMSolverMultistepScheduler."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row, make_table
from imagefleet.worker.engine.schedulers.combinations import SAMPLE, Combination, as_lags, lag
from imagefleet.worker.engine.schedulers.multistep_levels import multistep_levels
from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    NoiseLevel,
    log_ratio,
    training_ratios,
    x0_from_output,
)
from imagefleet.worker.engine.schedulers.noise_schedule import Floats, NoiseSchedule
from imagefleet.worker.engine.schedulers.prediction import Prediction
from imagefleet.worker.engine.schedulers.solver_options import DpmOptions

_FEW_STEPS: Final = 15
"""With fewer steps, the last ones are of a lower order, unless `lower_order_final` is false."""


def dpmsolver(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted x0."""
    options = schedule.dpm
    # As diffusers, for these betas only.
    rounds_down = schedule.beta_schedule == "squaredcos_cap_v2"
    timesteps, levels = dpm_levels(schedule, options, steps, rounds_down=rounds_down)
    # `lambda_min_clipped` may already have removed the first timesteps.
    skipped = min(skipped, len(timesteps) - 1)
    final, prediction = schedule.final_sigmas_type, schedule.prediction_type
    return dpm_table(options, timesteps, levels, skipped, final, prediction)


def dpm_table(
    options: DpmOptions,
    timesteps: Floats,
    levels: Sequence[NoiseLevel],
    skipped: int,
    final_sigmas_type: str,
    prediction: Prediction,
) -> CoefficientTable:
    """Return the table for these timesteps without the first `skipped`.

    Args:
        options: Of the solver.
        timesteps: One for each step.
        levels: The noise level at each timestep, and the one after the last.
        skipped: The number of first steps that do not run.
        final_sigmas_type: Of the scheduler.
        prediction: What the model predicts.
    """
    rows = []
    for index, (combination, fresh) in enumerate(
        dpm_steps(options, levels[skipped:], len(timesteps), final_sigmas_type)
    ):
        keep, lags = as_lags(combination)
        to_h = x0_from_output(prediction, levels[skipped + index])
        timestep = timesteps[skipped + index]
        rows.append(make_row(timestep, keep=keep, lags=lags, to_h=to_h, fresh=fresh))
    return make_table(rows, levels[skipped:-1], prediction)


def dpmsolver_karras(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table of `dpmsolver` with the noise levels of Karras et al. 2022."""
    return dpmsolver(replace(schedule, sigma_spacing="karras"), steps, skipped)


def dpm_levels(
    schedule: NoiseSchedule, options: DpmOptions, steps: int, *, rounds_down: bool = False
) -> tuple[Floats, list[NoiseLevel]]:
    """Return the timesteps, the noise level at each, and the one after the last.

    Args:
        schedule: The checkpoint's.
        options: Of the solver.
        steps: The number of steps.
        rounds_down: See `multistep_levels`.
    """
    trained = training_ratios(schedule)
    # -log(ratio) is lambda of the paper. Timesteps with lambda below the bound are left out.
    clipped = int((-np.log(trained) < options.lambda_min_clipped).sum())
    timesteps, ratios = multistep_levels(schedule, steps, clipped=clipped, rounds_down=rounds_down)
    is_clean = schedule.final_sigmas_type == "zero"
    last = CLEAN if is_clean else NoiseLevel.from_ratio(trained[0])
    return timesteps, [*(NoiseLevel.from_ratio(ratio) for ratio in ratios), last]


def dpm_steps(
    options: DpmOptions, levels: Sequence[NoiseLevel], steps: int, final_sigmas_type: str
) -> list[tuple[Combination, float]]:
    """Return each step's combination of the sample and predicted x0, and the factor of its noise.

    Args:
        options: Of the solver.
        levels: The noise levels of the steps that run, and the one after them.
        steps: The number of steps, with those that are skipped before these.
        final_sigmas_type: Of the scheduler.
    """
    few = options.lower_order_final and steps < _FEW_STEPS
    made = []
    for index in range(len(levels) - 1):
        left = len(levels) - 2 - index
        order = min(options.solver_order, index + 1)
        if left == 0 and (few or options.euler_at_final or final_sigmas_type == "zero"):
            order = 1
        if left == 1 and few:
            order = min(order, 2)
        past = [levels[index - back] for back in range(1, order)]
        made.append(_step(options, past, levels[index], levels[index + 1]))
    return made


def _step(
    options: DpmOptions, past: Sequence[NoiseLevel], start: NoiseLevel, end: NoiseLevel
) -> tuple[Combination, float]:
    """Return the combination and the factor of the noise of a step from `start` to `end`.

    `past` are the noise levels before the previous rows, the latest first; there is one for each
    order above the first. In the notation of Lu et al. 2022, width is h, and the differences are
    D0, D1 and D2.
    """
    width = log_ratio(end) - log_ratio(start)
    keep, fresh = end.sigma / start.sigma, 0.0
    if options.stochastic:
        keep *= math.exp(-width)
        fresh = end.sigma * math.sqrt(-math.expm1(-2 * width))
    # The SDE doubles the width, but only inside the exponentials.
    span = 2 * width if options.stochastic else width
    gain = -end.alpha * math.expm1(-span)
    combination = keep * SAMPLE + gain * lag(0)
    if not past or width == 0:  # a last step that ends where it starts
        return combination, fresh
    ratios = [_log_width(past, start, back) / width for back in range(len(past))]
    first = (lag(0) - lag(1)) / ratios[0]
    slope = end.alpha * (math.expm1(-span) / span + 1)
    if len(past) == 1:
        is_heun = options.solver_type == "heun"
        return combination + (slope if is_heun else 0.5 * gain) * first, fresh
    second = (lag(1) - lag(2)) / ratios[1]
    change = (first - second) / (ratios[0] + ratios[1])
    curve = -end.alpha * (math.expm1(-span) + span) / span**2
    # The signs differ between the two in diffusers, too.
    curve += -0.5 * end.alpha if options.stochastic else 0.5 * end.alpha
    return combination + slope * (first + ratios[0] * change) + curve * change, fresh


def _log_width(past: Sequence[NoiseLevel], start: NoiseLevel, back: int) -> float:
    """Return the width of an earlier step: 0 is the one that led to `start`."""
    later = start if back == 0 else past[back - 1]
    return log_ratio(later) - log_ratio(past[back])
