"""Define noise levels, and x0 and eps as linear combinations of a sample and the model's output.

Input: a noise schedule. Output: coefficients. This module uses numpy only.

A noisy sample is x = alpha * x0 + sigma * eps with alpha^2 + sigma^2 = 1, or in a flow model with
alpha + sigma = 1. diffusers' Euler and DPM-Solver use the ratio sigma / alpha, and Euler keeps
samples as x0 + (sigma / alpha) * eps.
"""

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.schedulers.noise_schedule import Floats, NoiseSchedule
from imagefleet.worker.engine.schedulers.prediction import Prediction


class NoiseLevel(NamedTuple):
    """It has alpha and sigma of a noisy sample."""

    alpha: float
    sigma: float

    @classmethod
    def from_alpha_cumprod(cls, alpha_cumprod: float) -> "NoiseLevel":
        """Return the level from `alphas_cumprod[t]`, the share of the signal's variance."""
        return cls(float(alpha_cumprod) ** 0.5, (1 - float(alpha_cumprod)) ** 0.5)

    @classmethod
    def from_ratio(cls, ratio: float) -> "NoiseLevel":
        """Return the level from sigma / alpha."""
        alpha = 1 / (float(ratio) ** 2 + 1) ** 0.5
        return cls(alpha, float(ratio) * alpha)

    @property
    def ratio(self) -> float:
        """Return sigma / alpha."""
        return self.sigma / self.alpha


def log_ratio(level: NoiseLevel) -> float:
    """Return log(alpha / sigma), which solvers call lambda. It is infinite without noise."""
    return math.log(level.alpha / level.sigma) if level.sigma else math.inf


CLEAN: Final = NoiseLevel(1.0, 0.0)
"""A sample without noise has this level."""


class LinearCombination(NamedTuple):
    """It is the quantity sample_part * x + output_part * m, with sample x and model output m."""

    sample_part: float
    output_part: float


def x0_from_output(prediction: Prediction, level: NoiseLevel) -> LinearCombination:
    """Return the predicted x0, for a model of this `prediction_type`."""
    alpha, sigma = level
    match prediction:
        case Prediction.EPSILON:
            return LinearCombination(1 / alpha, -sigma / alpha)
        case Prediction.V:
            return LinearCombination(alpha, -sigma)
        case Prediction.SAMPLE:
            return LinearCombination(0.0, 1.0)
        case Prediction.FLOW:
            return LinearCombination(1.0, -sigma)


def eps_from_output(prediction: Prediction, level: NoiseLevel) -> LinearCombination:
    """Return the predicted eps, for a model of this `prediction_type`."""
    alpha, sigma = level
    match prediction:
        case Prediction.EPSILON:
            return LinearCombination(0.0, 1.0)
        case Prediction.V:
            return LinearCombination(sigma, alpha)
        case Prediction.SAMPLE:
            return LinearCombination(1 / sigma, -alpha / sigma)
        case Prediction.FLOW:
            return LinearCombination(1.0, alpha)


def ddim_transition(
    prediction: Prediction, start: NoiseLevel, end: NoiseLevel
) -> LinearCombination:
    """Return the sample at `end` after a DDIM step from `start` (Song et al. 2021, equation 12)."""
    x0, eps = x0_from_output(prediction, start), eps_from_output(prediction, start)
    return LinearCombination(
        end.alpha * x0.sample_part + end.sigma * eps.sample_part,
        end.alpha * x0.output_part + end.sigma * eps.output_part,
    )


def training_ratios(schedule: NoiseSchedule) -> Floats:
    """Return sigma / alpha at each training timestep."""
    alphas_cumprod = schedule.alphas_cumprod.copy()
    if schedule.rescale_betas_zero_snr:
        alphas_cumprod[-1] = 2**-24  # as in diffusers; at 0 the ratio would be infinite
    return np.asarray(((1 - alphas_cumprod) / alphas_cumprod) ** 0.5, np.float64)


def ratios_at(schedule: NoiseSchedule, timesteps: NDArray[np.floating | np.integer]) -> Floats:
    """Return sigma / alpha at these timesteps, which may be fractions."""
    known_timesteps = np.arange(schedule.num_train_timesteps)
    return np.asarray(np.interp(timesteps, known_timesteps, training_ratios(schedule)), np.float64)


def spaced_ratios(spacing: str, largest: float, smallest: float, steps: int) -> Floats:
    """Return noise levels between two, spaced as one of `SIGMA_SPACINGS` says."""
    ramp = np.linspace(0, 1, steps)
    if spacing == "karras":
        return karras_ratios(largest, smallest, ramp)
    if spacing == "exponential":
        return np.asarray(np.exp(np.linspace(np.log(largest), np.log(smallest), steps)))
    from scipy.special import betaincinv

    return np.asarray(smallest + betaincinv(0.6, 0.6, 1 - ramp) * (largest - smallest))


def karras_ratios(largest: float, smallest: float, ramp: Floats, rho: float = 7.0) -> Floats:
    """Return the noise levels of Karras et al. 2022, equation 5, at places 0 to 1 of `ramp`."""
    first, last = largest ** (1 / rho), smallest ** (1 / rho)
    return np.asarray((first + ramp * (last - first)) ** rho)


def timesteps_at(schedule: NoiseSchedule, ratios: Floats) -> Floats:
    """Return the timesteps of these ratios, as fractions; interpolates the logarithms.

    It rounds to float32 where diffusers does, because callers round the result to whole timesteps.
    """
    known = np.log(np.float32(training_ratios(schedule)))
    known_timesteps = np.arange(schedule.num_train_timesteps)
    return np.asarray(np.interp(np.log(ratios), known, known_timesteps), np.float64)
