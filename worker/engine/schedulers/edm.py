"""Make tables of Euler and DPM-Solver++ for models with the preconditioning of Karras et al. 2022:
diffusers' EDMEulerScheduler and EDMDPMSolverMultistepScheduler.

Such a model was trained at noise levels sigma around samples of standard deviation sigma_data, and
gets the logarithm of sigma as its timestep. We keep samples scaled as the model gets them.
"""

from itertools import pairwise

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row, make_table
from imagefleet.worker.engine.schedulers.combinations import SAMPLE, Combination, as_lags, lag
from imagefleet.worker.engine.schedulers.dpmsolver import dpm_steps
from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    LinearCombination,
    NoiseLevel,
    karras_ratios,
)
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule
from imagefleet.worker.engine.schedulers.prediction import Prediction
from imagefleet.worker.engine.schedulers.solver_options import EdmOptions


def edm_euler(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted x0."""
    options = _options(schedule)
    levels = _levels(schedule, options, steps)[skipped:]
    made: list[tuple[Combination, float]] = []
    for start, end in pairwise(levels):
        left = end.ratio / start.ratio
        step = end.alpha * (left / start.alpha * SAMPLE + (1 - left) * lag(0))
        made.append((step, 0.0))
    return _table(schedule, options, levels, made)


def edm_dpmsolver(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted x0."""
    options = _options(schedule)
    levels = _levels(schedule, options, steps)[skipped:]
    made = dpm_steps(schedule.dpm, levels, steps, schedule.final_sigmas_type)
    return _table(schedule, options, levels, made)


def _levels(schedule: NoiseSchedule, options: EdmOptions, steps: int) -> list[NoiseLevel]:
    """Return the noise level of each step, and the one after them."""
    if options.is_exponential:
        ends = np.log(options.sigma_max), np.log(options.sigma_min)
        # As in diffusers, a single step is at the end of the list.
        sigmas = np.exp(np.linspace(*ends, steps) if steps > 1 else np.array([ends[1]]))
    else:
        ramp = np.linspace(0, 1, steps)
        sigmas = karras_ratios(options.sigma_max, options.sigma_min, ramp, options.rho)
    alphas = (sigmas**2 + options.sigma_data**2) ** -0.5
    levels = [NoiseLevel(float(a), float(a * s)) for a, s in zip(alphas, sigmas, strict=True)]
    # The sample is not scaled down by the noise left at the end.
    last = CLEAN if schedule.final_sigmas_type == "zero" else NoiseLevel(1.0, options.sigma_min)
    return [*levels, last]


def _table(
    schedule: NoiseSchedule,
    options: EdmOptions,
    levels: list[NoiseLevel],
    made: list[tuple[Combination, float]],
) -> CoefficientTable:
    sign = -1.0 if schedule.prediction_type is Prediction.V else 1.0
    data, rows, to_x0 = options.sigma_data, [], []
    for level, (step, fresh) in zip(levels, made, strict=False):
        # c_skip and c_out of Karras et al. 2022, table 1, over the scaled sample.
        x0 = LinearCombination(data**2 * level.alpha, sign * data * level.sigma)
        keep, lags = as_lags(step)
        timestep = float(np.log(level.ratio)) / 4
        rows.append(make_row(timestep, keep=keep, lags=lags, to_h=x0, fresh=fresh))
        to_x0.append(x0)
    init = (options.sigma_max**2 + 1) ** 0.5 * levels[0].alpha
    return make_table(rows, levels[:-1], to_x0, init)


def _options(schedule: NoiseSchedule) -> EdmOptions:
    """Return the options.

    Raises:
        ValueError: The registry does not offer these schedulers with this schedule.
    """
    if schedule.edm is None:
        raise ValueError("the model was not trained with the noise levels of EDM")
    return schedule.edm
