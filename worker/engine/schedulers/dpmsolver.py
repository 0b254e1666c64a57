"""DPM-Solver++ of first and second order (Lu et al. 2022, algorithm 2, and its SDE), as diffusers'
DPMSolverMultistepScheduler."""

import math
from dataclasses import replace

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import Table, row, table
from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    Level,
    clean_sample,
    karras_ratios,
    noise_ratios,
    ratios_at,
    timesteps_of,
)
from imagefleet.worker.engine.schedulers.noise_schedule import DpmOptions, Floats, NoiseSchedule

_FEW_STEPS = 15
"""Below, the last step is of first order, unless the file says otherwise."""


def dpmsolver(noise: NoiseSchedule, steps: int, skipped: int = 0) -> Table:
    """`steps` calls of the model, less the `skipped` first ones; h is the clean sample."""
    timesteps, ratios = _schedule(noise, steps)
    skipped = min(skipped, len(timesteps) - 1)  # what is beyond the clip was left out already
    last = CLEAN if noise.final_sigmas_type == "zero" else Level.of_ratio(noise_ratios(noise)[0])
    levels = [*(Level.of_ratio(ratio) for ratio in ratios), last]
    rows = []
    for index in range(skipped, len(timesteps)):
        start, end = levels[index], levels[index + 1]
        first_order = index == skipped or noise.dpm.solver_order == 1
        if index == len(timesteps) - 1:
            first_order |= _ends_in_first_order(noise, len(timesteps))
        before = None if first_order else levels[index - 1]
        keep, lags, fresh = _coefficients(noise.dpm, before, start, end)
        to_h = clean_sample(noise.prediction_type, start)
        rows.append(row(timesteps[index], keep=keep, lags=lags, to_h=to_h, fresh=fresh))
    return table(rows, levels[skipped:-1], noise.prediction_type)


def dpmsolver_karras(noise: NoiseSchedule, steps: int, skipped: int = 0) -> Table:
    """The same, with Karras' levels whatever the file says."""
    return dpmsolver(replace(noise, use_karras_sigmas=True), steps, skipped)


def _coefficients(
    options: DpmOptions, before: Level | None, start: Level, end: Level
) -> tuple[float, tuple[float, ...], float]:
    """Of the sample, of this and the last clean sample, and of fresh noise."""
    width = _log_ratio(end) - _log_ratio(start)
    keep, fresh = end.sigma / start.sigma, 0.0
    if options.stochastic:
        keep *= math.exp(-width)
        fresh = end.sigma * math.sqrt(-math.expm1(-2 * width))
    # The SDE goes over a span twice as wide, in its exponentials only.
    span = 2 * width if options.stochastic else width
    gain = -end.alpha * math.expm1(-span)
    if before is None:
        return keep, (gain,), fresh
    slope = 0.5 * gain
    if options.solver_type == "heun":
        slope = end.alpha * (math.expm1(-span) / span + 1)
    slope *= width / (_log_ratio(start) - _log_ratio(before))
    return keep, (gain + slope, -slope), fresh


def _ends_in_first_order(noise: NoiseSchedule, steps: int) -> bool:
    few = noise.dpm.lower_order_final and steps < _FEW_STEPS
    return noise.dpm.euler_at_final or few or noise.final_sigmas_type == "zero"


def _schedule(noise: NoiseSchedule, steps: int) -> tuple[Floats, Floats]:
    """Timesteps for the model, and sigma / alpha there."""
    if not noise.use_karras_sigmas:
        timesteps = _timesteps(noise, steps)
        return timesteps, ratios_at(noise, timesteps)
    there = noise_ratios(noise)
    ratios = karras_ratios(there[-1], there[0], steps)
    exact = timesteps_of(noise, ratios)
    cosine = noise.beta_schedule == "squaredcos_cap_v2"
    return np.asarray(np.floor(exact) if cosine else exact.round(), np.float64), ratios


def _timesteps(noise: NoiseSchedule, steps: int) -> Floats:
    """As `NoiseSchedule.timesteps`, but of one step more, without the last. With nearly as many as
    there are timesteps, the model is asked in between."""
    train = noise.num_train_timesteps
    # -log(ratio) grows towards clean samples; the noisiest beyond the clip are left out.
    clipped = int((-np.log(noise_ratios(noise)) < noise.dpm.lambda_min_clipped).sum())
    last = train - clipped
    spacing = noise.timestep_spacing or "linspace"
    if spacing == "linspace":
        exact = np.linspace(0, last - 1, steps + 1)[:0:-1]
        return np.asarray(exact.round() if steps < last else exact, np.float64)
    if spacing == "leading":
        stride = last // (steps + 1) or last / (steps + 1)
        offset = min(noise.steps_offset, train - 1 - steps * stride)
        return np.arange(steps, 0.0, -1) * stride + offset
    return np.arange(last, 0.5, -train / steps).round() - 1


def _log_ratio(level: Level) -> float:
    """Half the log of the signal-to-noise ratio; infinite without noise."""
    return math.log(level.alpha / level.sigma) if level.sigma else math.inf
