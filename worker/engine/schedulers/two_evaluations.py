"""Make tables of schedulers that call the model twice in each step but the last: Heun and DPM2.

They are diffusers' HeunDiscreteScheduler, KDPM2DiscreteScheduler and its ancestral variant (Karras
et al. 2022, algorithms 1 and 2 without churn). The first call of a step moves the sample to the
noise level of the second call. The second starts from the sample before the first, which
`sample_before` recovers. h is the predicted noise. Samples are kept scaled as the model gets them.
"""

import numpy as np

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row
from imagefleet.worker.engine.schedulers.combinations import (
    SAMPLE,
    Combination,
    as_lags,
    lag,
    sample_before,
)
from imagefleet.worker.engine.schedulers.k_diffusion_levels import make_sigma_table, sigma_levels
from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    NoiseLevel,
    eps_from_output,
    timesteps_at,
)
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule


class _Rows:
    """It collects the rows of a table, and the noise level of each."""

    def __init__(self, schedule: NoiseSchedule) -> None:
        self._schedule = schedule
        self._rows: list[list[float]] = []
        self._levels: list[NoiseLevel] = []
        self._kept_levels: dict[int, NoiseLevel] = {}

    def add(
        self,
        timestep: float,
        level: NoiseLevel,
        step: Combination,
        fresh: float = 0,
        kept: NoiseLevel | None = None,
    ) -> None:
        """Add a row.

        Args:
            kept: The level after the row of the area that an inpainted image keeps, if it is not
                that of the next row.
        """
        keep, lags = as_lags(step)
        to_h = eps_from_output(self._schedule.prediction_type, level)
        if kept is not None:
            self._kept_levels[len(self._rows)] = kept
        self._rows.append(make_row(timestep, keep=keep, lags=lags, to_h=to_h, fresh=fresh))
        self._levels.append(level)

    def table(self, first: NoiseLevel) -> CoefficientTable:
        table = make_sigma_table(self._schedule, self._rows, self._levels, first, order=2)
        return table.with_next_levels(self._kept_levels)


def heun(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table of `2 steps - 1` calls without those of the first `skipped` steps."""
    timesteps, levels = sigma_levels(schedule, steps)
    rows = _Rows(schedule)
    for index in range(skipped, steps):
        start, end = levels[index], levels[index + 1] if index + 1 < steps else CLEAN
        width = end.ratio - start.ratio
        euler = _move(SAMPLE, start, end, lag(0), width)
        rows.add(timesteps[index], start, euler)
        if index + 1 < steps:
            mean = (lag(0) + lag(1)) / 2
            step = _move(sample_before(euler), start, end, mean, width)
            rows.add(timesteps[index + 1], end, step)
    return rows.table(levels[0])


def kdpm2(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table of `2 steps - 1` calls without those of the first `skipped` steps."""
    return _kdpm2(schedule, steps, skipped, is_ancestral=False)


def kdpm2_ancestral(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table of `2 steps - 1` calls without those of the first `skipped` steps.

    Each step but the last adds fresh noise.
    """
    return _kdpm2(schedule, steps, skipped, is_ancestral=True)


def _kdpm2(
    schedule: NoiseSchedule, steps: int, skipped: int, *, is_ancestral: bool
) -> CoefficientTable:
    timesteps, levels = sigma_levels(schedule, steps)
    if schedule.sigma_spacing == "karras":  # as in diffusers, of these two schedulers only
        timesteps = timesteps.round()
    rows = _Rows(schedule)
    for index in range(skipped, steps):
        start = levels[index]
        if index + 1 == steps:
            rows.add(timesteps[index], start, _move(SAMPLE, start, CLEAN, lag(0), -start.ratio))
            break
        end = levels[index + 1]
        up = end.ratio * (1 - (end.ratio / start.ratio) ** 2) ** 0.5 if is_ancestral else 0.0
        down = (end.ratio**2 - up**2) ** 0.5
        middle = NoiseLevel.from_ratio((start.ratio * down) ** 0.5)
        first = _move(SAMPLE, start, middle, lag(0), middle.ratio - start.ratio)
        # The scheduler's `add_noise` knows the sigmas at the ends of steps only, but the sample is
        # scaled for the place in the middle.
        kept = NoiseLevel(middle.alpha, middle.alpha * end.ratio)
        rows.add(timesteps[index], start, first, kept=kept)
        step = _move(sample_before(first), start, end, lag(0), down - start.ratio)
        timestep = timesteps_at(schedule, np.array([middle.ratio]))[0]
        rows.add(float(timestep), middle, step, end.alpha * up)
    return rows.table(levels[0])


def _move(
    sample: Combination, start: NoiseLevel, end: NoiseLevel, noise: Combination, width: float
) -> Combination:
    """Return the sample after a straight move along the predicted noise, by `width`."""
    return np.asarray(end.alpha * (sample / start.alpha + width * noise))
