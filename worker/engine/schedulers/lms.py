"""Make tables of linear multistep in sigma / alpha, of up to fourth order: diffusers'
LMSDiscreteScheduler.

A step extrapolates the predicted noise as a polynomial in the ratio and integrates it. Like Euler,
it keeps samples scaled as the model gets them.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row
from imagefleet.worker.engine.schedulers.k_diffusion_levels import make_sigma_table, sigma_levels
from imagefleet.worker.engine.schedulers.noise_levels import CLEAN, eps_from_output
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule

_ORDER: Final = 4


def lms(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted noise."""
    timesteps, levels = sigma_levels(schedule, steps)
    ends = [*levels[1:], CLEAN]
    rows = []
    for index in range(skipped, len(levels)):
        start, end = levels[index], ends[index]
        # As in diffusers, the order counts skipped steps, but their outputs do not exist.
        order = min(index + 1, _ORDER)
        used = [levels[index - back].ratio for back in range(order)]
        weights = [_integral(used, back, end.ratio) for back in range(order)]
        rows.append(
            make_row(
                float(timesteps[index]),
                keep=end.alpha / start.alpha,
                lags=tuple(end.alpha * weight for weight in weights[: index - skipped + 1]),
                to_h=eps_from_output(schedule.prediction_type, start),
            )
        )
    return make_sigma_table(schedule, rows, levels[skipped:], levels[0])


def _integral(ratios: Sequence[float], index: int, end: float) -> float:
    """Return the integral of one Lagrange polynomial from the first of `ratios` to `end`."""
    others = np.delete(np.array(ratios), index)
    polynomial = np.polynomial.Polynomial.fromroots(others) if len(others) else _ONE
    antiderivative = polynomial.integ()
    area = antiderivative(end) - antiderivative(ratios[0])
    return float(area / np.prod(ratios[index] - others))


_ONE: Final = np.polynomial.Polynomial([1.0])
