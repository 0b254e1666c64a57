"""Make timesteps and noise levels of the multistep solvers: DPM-Solver++, DEIS and UniPC.

Input: a noise schedule and a step count. Output: timesteps and noise levels. diffusers gives these
solvers one timestep more than steps and leaves out the last. This module uses numpy only.
"""

import numpy as np

from imagefleet.worker.engine.schedulers.noise_levels import (
    ratios_at,
    spaced_ratios,
    timesteps_at,
    training_ratios,
)
from imagefleet.worker.engine.schedulers.noise_schedule import Floats, NoiseSchedule


def multistep_levels(
    schedule: NoiseSchedule, steps: int, *, clipped: int = 0, rounds_down: bool = False
) -> tuple[Floats, Floats]:
    """Return the timesteps for the model, and sigma / alpha at each.

    Args:
        schedule: The checkpoint's.
        steps: The number of steps.
        clipped: The noisiest training timesteps that are left out.
        rounds_down: Whether the timesteps of Karras' noise levels are rounded down and not to the
            nearest.
    """
    if schedule.sigma_spacing is None:
        timesteps = _timesteps(schedule, steps, clipped)
        return timesteps, ratios_at(schedule, timesteps)
    trained = training_ratios(schedule)
    ratios = spaced_ratios(schedule.sigma_spacing, trained[-1], trained[0], steps)
    exact = timesteps_at(schedule, ratios)
    # As in diffusers, which rounds Karras' timesteps, and truncates the others to whole numbers.
    rounds_down |= schedule.sigma_spacing != "karras"
    return np.asarray(np.floor(exact) if rounds_down else exact.round(), np.float64), ratios


def lowest_ratio(schedule: NoiseSchedule, ratios: Floats) -> float:
    """Return sigma / alpha after the last step of DEIS, and of UniPC's `sigma_min`.

    As in diffusers, a single step with another spacing of the noise levels ends where it starts.
    """
    return float(training_ratios(schedule)[0] if schedule.sigma_spacing is None else ratios[-1])


def _timesteps(schedule: NoiseSchedule, steps: int, clipped: int) -> Floats:
    """Return all but the last of `steps + 1` timesteps, spaced as in `NoiseSchedule.timesteps`.

    If there are nearly as many steps as training timesteps, some are fractions.
    """
    train = schedule.num_train_timesteps
    last = train - clipped
    spacing = schedule.timestep_spacing or "linspace"
    if spacing == "linspace":
        exact = np.linspace(0, last - 1, steps + 1)[:0:-1]
        return np.asarray(exact.round() if steps < last else exact, np.float64)
    if spacing == "leading":
        stride = last // (steps + 1) or last / (steps + 1)
        offset = min(schedule.steps_offset, train - 1 - steps * stride)
        return np.arange(steps, 0.0, -1) * stride + offset
    return np.arange(last, 0.5, -train / steps).round() - 1
