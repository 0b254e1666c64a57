"""Make tables of singlestep DPM-Solver++ of first to third order (Lu et al. 2022): diffusers'
DPMSolverSinglestepScheduler.

Steps come in groups of up to `solver_order`. Every step of a group starts from the sample before
the group, with one predicted x0 more than the step before.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row, make_table
from imagefleet.worker.engine.schedulers.combinations import (
    SAMPLE,
    Combination,
    as_lags,
    at_next_row,
    lag,
    starting_from,
)
from imagefleet.worker.engine.schedulers.dpmsolver import dpm_levels
from imagefleet.worker.engine.schedulers.noise_levels import NoiseLevel, log_ratio, x0_from_output
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule
from imagefleet.worker.engine.schedulers.solver_options import DpmOptions


def singlestep(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted x0."""
    options = schedule.singlestep
    # diffusers' class knows no other spacing.
    linear = replace(schedule, timestep_spacing="linspace")
    timesteps, levels = dpm_levels(linear, options, steps)
    orders = _orders(options, schedule.final_sigmas_type, steps)
    rows: list[list[float]] = []
    start, made = SAMPLE, SAMPLE
    for index in range(skipped, len(timesteps)):
        # If the first step lies in the middle of a group, the outputs before it do not exist.
        order = min(orders[index], index - skipped + 1)
        start = SAMPLE if order == 1 else at_next_row(start, made)
        past = [levels[index - back] for back in range(order)]
        made = starting_from(_step(options, past, levels[index + 1]), start)
        keep, lags = as_lags(made)
        to_h = x0_from_output(schedule.prediction_type, levels[index])
        rows.append(make_row(timesteps[index], keep=keep, lags=lags, to_h=to_h))
    return make_table(rows, levels[skipped:-1], schedule.prediction_type)


def _orders(options: DpmOptions, final_sigmas_type: str, steps: int) -> list[int]:
    """Return the order of each step, as diffusers' `get_order_list`."""
    group = options.solver_order
    orders = [1 + index % group for index in range(steps)]
    if final_sigmas_type == "zero" or (options.lower_order_final and not steps % group):
        orders[-1] = 1
    return orders


def _step(options: DpmOptions, past: Sequence[NoiseLevel], end: NoiseLevel) -> Combination:
    """Return the sample at `end`, from the sample before the group.

    `past` are the noise levels of this and the earlier rows of the group, the latest first. In
    Lu et al. 2022, width is h, and the differences are D1 and D2.
    """
    start = past[-1]
    width = log_ratio(end) - log_ratio(start)
    gain = -end.alpha * math.expm1(-width)
    first = lag(len(past) - 1)
    step = end.sigma / start.sigma * SAMPLE + gain * first
    if len(past) == 1:
        return np.asarray(step)
    slope = end.alpha * (math.expm1(-width) / width + 1)
    is_heun = options.solver_type == "heun"
    places = [(log_ratio(level) - log_ratio(start)) / width for level in past[:-1]]
    latest = (lag(0) - first) / places[0]
    if len(past) == 2:
        return np.asarray(step + (slope if is_heun else 0.5 * gain) * latest)
    if not is_heun:
        return np.asarray(step + slope * latest)
    middle = (lag(1) - first) / places[1]
    distance = places[0] - places[1]
    curve = -end.alpha * ((math.expm1(-width) + width) / width**2 - 0.5)
    change = (places[0] * middle - places[1] * latest) / distance
    return np.asarray(step + slope * change + curve * 2 * (latest - middle) / distance)
