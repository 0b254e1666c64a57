"""Make tables of UniPC of first to third order (Zhao et al. 2023, algorithms 1 and 2): diffusers'
UniPCMultistepScheduler.

At each call the model's output first corrects the sample, then predicts the next one. The corrector
starts from the sample before the last prediction, which `sample_before` recovers.
"""

import math
from collections.abc import Sequence

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row, make_table
from imagefleet.worker.engine.schedulers.combinations import (
    SAMPLE,
    Combination,
    as_lags,
    lag,
    sample_before,
    starting_from,
)
from imagefleet.worker.engine.schedulers.multistep_levels import lowest_ratio, multistep_levels
from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    NoiseLevel,
    log_ratio,
    x0_from_output,
)
from imagefleet.worker.engine.schedulers.noise_schedule import Floats, NoiseSchedule
from imagefleet.worker.engine.schedulers.prediction import Prediction
from imagefleet.worker.engine.schedulers.solver_options import UniPcOptions


def unipc(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted x0."""
    timesteps, ratios = multistep_levels(schedule, steps)
    levels = [NoiseLevel.from_ratio(ratio) for ratio in ratios]
    last = NoiseLevel.from_ratio(lowest_ratio(schedule, ratios))
    levels.append(CLEAN if schedule.final_sigmas_type == "zero" else last)
    return unipc_table(schedule.unipc, timesteps, levels, skipped, schedule.prediction_type)


def unipc_table(
    options: UniPcOptions,
    timesteps: Floats,
    levels: Sequence[NoiseLevel],
    skipped: int,
    prediction: Prediction,
) -> CoefficientTable:
    """Return the table for these timesteps without the first `skipped`.

    Args:
        options: Of the solver.
        timesteps: One for each step.
        levels: The noise level at each timestep, and the one after the last.
        skipped: The number of first steps that do not run.
        prediction: What the model predicts.
    """
    rows = []
    order, predicted = 0, SAMPLE
    for index in range(skipped, len(timesteps)):
        sample = SAMPLE
        if order and index - 1 not in options.disable_corrector:
            past = [levels[index - back] for back in range(1, order + 1)]
            correct = _correct(options, past, levels[index])
            sample = starting_from(correct, sample_before(predicted))
        order = min(options.solver_order, index - skipped + 1)
        if options.lower_order_final:
            order = min(order, len(timesteps) - index)
        predicted = _predict(
            options, [levels[index - back] for back in range(order)], levels[index + 1]
        )
        keep, lags = as_lags(starting_from(predicted, sample))
        to_h = x0_from_output(prediction, levels[index])
        rows.append(make_row(timesteps[index], keep=keep, lags=lags, to_h=to_h))
    return make_table(rows, levels[skipped:-1], prediction)


def _predict(options: UniPcOptions, past: Sequence[NoiseLevel], end: NoiseLevel) -> Combination:
    """Return the predicted sample at `end`, from a sample at `past[0]`.

    `past` are the noise levels of this and earlier rows, the latest first, one for each order.
    """
    width = _width(past, end)
    step = _first_order(past[0], end, width, lag(0))
    if len(past) == 1 or width == 0:  # a step of no width ends at the sample, as in diffusers
        return step
    places = _places(past, end)
    scale, moments = _moments(options, width, len(past))
    powers = np.vander(places, len(places), increasing=True).T
    # As in diffusers, the second order has a fixed weight.
    weights = np.array([0.5]) if len(past) == 2 else np.linalg.solve(powers, moments[:-1])
    for back, (weight, place) in enumerate(zip(weights, places, strict=True), start=1):
        step = step - end.alpha * scale * weight * (lag(back) - lag(0)) / place
    return step


def _correct(options: UniPcOptions, past: Sequence[NoiseLevel], end: NoiseLevel) -> Combination:
    """Return the corrected sample at `end`, from the sample before the prediction.

    `past` are the noise levels of earlier rows, the latest first, one for each order. `end` is
    that of this row.
    """
    width, places = _width(past, end), np.array([*_places(past, end), 1.0])
    scale, moments = _moments(options, width, len(past))
    powers = np.vander(places, len(places), increasing=True).T
    # As in diffusers, the first order has a fixed weight.
    *weights, last = [0.5] if len(past) == 1 else np.linalg.solve(powers, moments)
    step = _first_order(past[0], end, width, lag(1))
    step = step - end.alpha * scale * last * (lag(0) - lag(1))
    for back, (weight, place) in enumerate(zip(weights, places, strict=False), start=2):
        step = step - end.alpha * scale * weight * (lag(back) - lag(1)) / place
    return step


def _first_order(start: NoiseLevel, end: NoiseLevel, width: float, x0: Combination) -> Combination:
    return np.asarray(end.sigma / start.sigma * SAMPLE - end.alpha * math.expm1(-width) * x0)


def _width(past: Sequence[NoiseLevel], end: NoiseLevel) -> float:
    """Return h of the paper: the distance of the step in log(alpha / sigma)."""
    return log_ratio(end) - log_ratio(past[0])


def _places(past: Sequence[NoiseLevel], end: NoiseLevel) -> list[float]:
    """Return r of the paper: where the earlier levels lie, if the step goes from 0 to 1."""
    width = _width(past, end)
    return [(log_ratio(level) - log_ratio(past[0])) / width for level in past[1:]]


def _moments(options: UniPcOptions, width: float, order: int) -> tuple[float, list[float]]:
    """Return B(h) of the paper, and the right-hand side of its linear system."""
    scale = -width if options.solver_type == "bh1" else math.expm1(-width)
    phi = math.expm1(-width) / -width - 1
    moments = []
    for degree in range(1, order + 1):
        moments.append(phi * math.factorial(degree) / scale)
        phi = phi / -width - 1 / math.factorial(degree + 1)
    return scale, moments
