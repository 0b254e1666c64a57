"""How noisy a sample is, and the linear maps between samples and the model's output.

Goes in: a noise schedule. Comes out: coefficients. Plain numpy.

Throughout, a noisy sample is x = alpha * x0 + sigma * eps with alpha^2 + sigma^2 = 1. diffusers'
Euler and DPM-Solver keep samples at x0 + (sigma / alpha) eps and speak of that ratio.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.schedulers.noise_schedule import Floats, NoiseSchedule


class Level(NamedTuple):
    """How noisy a sample is."""

    alpha: float
    sigma: float

    @classmethod
    def of(cls, kept: float) -> "Level":
        """From the share of variance left, `alphas_cumprod[t]`."""
        return cls(float(kept) ** 0.5, (1 - float(kept)) ** 0.5)

    @classmethod
    def of_ratio(cls, ratio: float) -> "Level":
        """From sigma / alpha."""
        alpha = 1 / (float(ratio) ** 2 + 1) ** 0.5
        return cls(alpha, float(ratio) * alpha)

    @property
    def ratio(self) -> float:
        """sigma / alpha."""
        return self.sigma / self.alpha


CLEAN: Final = Level(1.0, 0.0)


class Mix(NamedTuple):
    """A quantity as sample_part * x + output_part * m, with m the model's output."""

    sample_part: float
    output_part: float


def clean_sample(prediction: str, level: Level) -> Mix:
    """The x0 that a model's output stands for."""
    alpha, sigma = level
    if prediction == "epsilon":
        return Mix(1 / alpha, -sigma / alpha)
    if prediction == "v_prediction":
        return Mix(alpha, -sigma)
    return Mix(0.0, 1.0)


def direction(prediction: str, level: Level) -> Mix:
    """The eps that a model's output stands for."""
    alpha, sigma = level
    if prediction == "epsilon":
        return Mix(0.0, 1.0)
    if prediction == "v_prediction":
        return Mix(sigma, alpha)
    return Mix(1 / sigma, -alpha / sigma)


def moved(prediction: str, start: Level, end: Level) -> Mix:
    """The sample at `end` along the straight line of DDIM (Song et al. 2021, equation 12)."""
    x0, eps = clean_sample(prediction, start), direction(prediction, start)
    return Mix(
        end.alpha * x0.sample_part + end.sigma * eps.sample_part,
        end.alpha * x0.output_part + end.sigma * eps.output_part,
    )


def noise_ratios(noise: NoiseSchedule) -> Floats:
    """sigma / alpha at each training timestep."""
    kept = noise.alphas_cumprod.copy()
    if noise.rescale_betas_zero_snr:
        kept[-1] = 2**-24  # as diffusers does, or the ratio would be infinite
    return np.asarray(((1 - kept) / kept) ** 0.5, np.float64)


def ratios_at(noise: NoiseSchedule, timesteps: NDArray[np.floating | np.integer]) -> Floats:
    """sigma / alpha at these timesteps, which may be fractions."""
    at = np.arange(noise.num_train_timesteps)
    return np.asarray(np.interp(timesteps, at, noise_ratios(noise)), np.float64)


def karras_ratios(largest: float, smallest: float, steps: int) -> Floats:
    """Karras et al. 2022, equation 5 with rho 7: noise levels, denser where there is little."""
    ramp = np.linspace(0, 1, steps)
    first, last = largest ** (1 / 7), smallest ** (1 / 7)
    return np.asarray((first + ramp * (last - first)) ** 7)


def timesteps_of(noise: NoiseSchedule, ratios: Floats) -> Floats:
    """The opposite of `ratios_at`: fractions of timesteps, between the logarithms."""
    known = np.log(np.float32(noise_ratios(noise)))  # diffusers' rounding decides whole timesteps
    at = np.arange(noise.num_train_timesteps)
    return np.asarray(np.interp(np.log(ratios), known, at), np.float64)
