"""Make tables of DEIS of first to third order in log rho (Zhang & Chen 2023): diffusers'
DEISMultistepScheduler.

rho is the ratio sigma / alpha. A step extrapolates the predicted noise as a polynomial in log rho
and integrates it over rho.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row, make_table
from imagefleet.worker.engine.schedulers.combinations import SAMPLE, Combination, as_lags, lag
from imagefleet.worker.engine.schedulers.multistep_levels import lowest_ratio, multistep_levels
from imagefleet.worker.engine.schedulers.noise_levels import NoiseLevel, eps_from_output
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule

_FEW_STEPS: Final = 15
"""With fewer steps, the last ones are of a lower order, unless `lower_order_final` is false."""


def deis(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted noise.

    As in diffusers, the last step ends at the lowest noise level of training.
    """
    options = schedule.deis
    timesteps, ratios = multistep_levels(schedule, steps)
    last = lowest_ratio(schedule, ratios)
    levels = [NoiseLevel.from_ratio(ratio) for ratio in (*ratios, last)]
    few = options.lower_order_final and len(timesteps) < _FEW_STEPS
    rows = []
    for index in range(skipped, len(timesteps)):
        order = min(options.solver_order, index - skipped + 1)
        if few:
            order = min(order, len(timesteps) - index)
        used = [levels[index - back] for back in range(order)]
        keep, lags = as_lags(_step(used, levels[index + 1]))
        to_h = eps_from_output(schedule.prediction_type, levels[index])
        rows.append(make_row(timesteps[index], keep=keep, lags=lags, to_h=to_h))
    return make_table(rows, levels[skipped:-1], schedule.prediction_type)


def _step(used: Sequence[NoiseLevel], end: NoiseLevel) -> Combination:
    """Return the combination of the sample and the predicted noises.

    `used` are the noise levels of the noises, the latest first.
    """
    rhos = np.array([level.ratio for level in used])
    combination = end.alpha / used[0].alpha * SAMPLE
    for back in range(len(used)):
        weight = _integral(rhos, back, end.ratio) - _integral(rhos, back, rhos[0])
        combination = combination + end.alpha * weight * lag(back)
    return combination


def _integral(rhos: np.ndarray, index: int, rho: float) -> float:
    """Return the integral from 0 to rho of the Lagrange polynomial in log rho of one noise."""
    others = np.log(np.delete(rhos, index))
    # The polynomial's coefficients in log rho, the constant first.
    polynomial = np.polynomial.polynomial.polyfromroots(others)
    polynomial = polynomial / np.prod(np.log(rhos[index]) - others)
    log, integral = np.log(rho), 0.0
    power = 1.0  # the integral of log(rho)^n, divided by rho
    for degree, factor in enumerate(polynomial):
        power = 1.0 if degree == 0 else log**degree - degree * power
        integral += factor * power
    return float(rho * integral)
