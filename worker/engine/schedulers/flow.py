"""Make tables of the schedulers of flow models.

These are diffusers' FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler and
FlowMatchLCMScheduler, and with `use_flow_sigmas` DPMSolverMultistepScheduler and
UniPCMultistepScheduler. The noise levels of Euler and LCM begin as diffusers' pipeline of the
family gives them, from 1 to 1 / steps, or gives none. The others begin as each scheduler makes
them.
"""

from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row, make_table
from imagefleet.worker.engine.schedulers.combinations import SAMPLE, as_lags, lag, sample_before
from imagefleet.worker.engine.schedulers.dpmsolver import dpm_table
from imagefleet.worker.engine.schedulers.flow_schedule import FlowSchedule, Sigmas
from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    NoiseLevel,
    spaced_ratios,
    x0_from_output,
)
from imagefleet.worker.engine.schedulers.unipc import unipc_table

_LEAST_ALPHA: Final = 1e-6
"""UniPC begins with this share of the image, since its logarithm must be finite."""


def flow_euler(schedule: FlowSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the model's output.

    With `stochastic_sampling` it is that of `flow_lcm`.
    """
    if schedule.stochastic_sampling:
        return flow_lcm(schedule, steps, skipped)
    timesteps, levels = _pipeline_levels(schedule, steps, skipped)
    rows = [
        make_row(timestep, keep=1.0, lags=(end.sigma - start.sigma,))
        for timestep, (start, end) in zip(timesteps, pairwise(levels), strict=True)
    ]
    return make_table(rows, levels[:-1], schedule.prediction_type)


def flow_lcm(schedule: FlowSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted x0.

    Each step but the last adds fresh noise to the predicted x0.
    """
    timesteps, levels = _pipeline_levels(schedule, steps, skipped)
    rows = [
        make_row(
            timestep,
            to_h=x0_from_output(schedule.prediction_type, start),
            keep=0.0,
            lags=(end.alpha,),
            fresh=end.sigma,
        )
        for timestep, (start, end) in zip(timesteps, pairwise(levels), strict=True)
    ]
    return make_table(rows, levels[:-1], schedule.prediction_type)


def flow_heun(schedule: FlowSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table of `2 steps - 1` calls without those of the first `skipped` steps.

    As in diffusers, h is the model's output, and the shift is that of the file, applied twice to
    the last levels.
    """
    train = schedule.num_train_timesteps
    sigmas = schedule.shifted_by_file(_trained_levels(schedule, steps, shift_ends=True))
    levels = [*_levels(sigmas), CLEAN]
    rows, at = [], []
    for index in range(skipped, steps):
        start, end = levels[index], levels[index + 1]
        width = end.sigma - start.sigma
        euler = SAMPLE + width * lag(0)
        keep, lags = as_lags(euler)
        rows.append(make_row(start.sigma * train, keep=keep, lags=lags))
        at.append(start)
        if index + 1 < steps:
            keep, lags = as_lags(sample_before(euler) + width / 2 * (lag(0) + lag(1)))
            rows.append(make_row(end.sigma * train, keep=keep, lags=lags))
            at.append(end)
    return make_table(rows, at, schedule.prediction_type, order=2)


def flow_dpmsolver(schedule: FlowSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted x0."""
    train = schedule.num_train_timesteps
    sigmas: NDArray[Any] = 1.0 - np.linspace(1, 1 / train, steps + 1)[1:]
    if schedule.use_dynamic_shifting:
        shift = np.exp(schedule.image_shift(steps))
        sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
    else:
        sigmas = schedule.shifted_by_file(sigmas)
    sigmas = sigmas[::-1]
    levels = [*_levels(sigmas), CLEAN]
    timesteps = np.floor(sigmas * train)  # as in diffusers, whole numbers
    return dpm_table(schedule.dpm, timesteps, levels, skipped, "zero", schedule.prediction_type)


def flow_unipc(schedule: FlowSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted x0."""
    train = schedule.num_train_timesteps
    sigmas: NDArray[Any] = np.linspace(1, 1 / train, steps + 1)[:-1]
    sigmas = schedule.stretched(schedule.shifted(sigmas, steps))
    if abs(sigmas[0] - 1) < _LEAST_ALPHA:
        sigmas[0] -= _LEAST_ALPHA
    levels = _levels(sigmas)
    levels.append(CLEAN if schedule.final_sigmas_type == "zero" else levels[-1])
    timesteps = np.floor(sigmas * train)  # as in diffusers, whole numbers
    return unipc_table(schedule.unipc, timesteps, levels, skipped, schedule.prediction_type)


def _pipeline_levels(
    schedule: FlowSchedule, steps: int, skipped: int
) -> tuple[list[float], list[NoiseLevel]]:
    """Return the timesteps of the steps that run, the noise level at each, and the clean one."""
    given: NDArray[Any] = np.linspace(1.0, 1 / steps, steps).astype(np.float32)
    if not schedule.has_pipeline_levels:
        is_static = not schedule.use_dynamic_shifting
        given = _trained_levels(schedule, steps, shift_ends=is_static)
    sigmas = schedule.stretched(schedule.shifted(given, steps))
    if schedule.sigma_spacing is not None:
        ends = float(sigmas[0]), float(sigmas[-1])
        sigmas = spaced_ratios(schedule.sigma_spacing, *ends, steps)
    exact = sigmas.astype(np.float32)[skipped:]
    timesteps = exact * np.float32(schedule.num_train_timesteps)
    return [float(timestep) for timestep in timesteps], [*_levels(exact), CLEAN]


def _trained_levels(schedule: FlowSchedule, steps: int, *, shift_ends: bool) -> NDArray[Any]:
    """Return levels from the first to the last of training, which may be shifted by the file."""
    train = schedule.num_train_timesteps
    ends: NDArray[Any] = np.array([train, 1], np.float32) / train
    if shift_ends:
        ends = schedule.shifted_by_file(ends)
    first, last = (float(end) * train for end in ends)
    return np.linspace(first, last, steps) / train


def _levels(sigmas: Sigmas) -> list[NoiseLevel]:
    """Return the levels of these shares of noise, rounded to float32 as in diffusers."""
    rounded = sigmas.astype(np.float32)
    alphas = np.float32(1) - rounded
    return [NoiseLevel(float(a), float(s)) for a, s in zip(alphas, rounded, strict=True)]
