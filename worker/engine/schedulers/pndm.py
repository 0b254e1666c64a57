"""Make tables of PNDM without its Runge-Kutta start, also called PLMS (Liu et al. 2022): diffusers'
PNDMScheduler with skip_prk_steps=True, the scheduler of Stable Diffusion 1.4.

diffusers calls the model twice at the second timestep. The first of these calls repeats the first
step, from the first sample, with the mean of both outputs. The first sample is a linear combination
of the current sample and the first output, so no copy of it is kept.
"""

from typing import Final

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row, make_table
from imagefleet.worker.engine.schedulers.noise_levels import CLEAN, NoiseLevel
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule
from imagefleet.worker.engine.schedulers.prediction import Prediction

_WEIGHTS: Final = (
    (1.0,),
    (1 / 2, 1 / 2),
    (3 / 2, 0.0, -1 / 2),
    (23 / 12, -16 / 12, 0.0, 5 / 12),
    (55 / 24, -59 / 24, 37 / 24, 0.0, -9 / 24),
    (55 / 24, -59 / 24, 37 / 24, -9 / 24),
)
"""For each call, it has the Adams-Bashforth weights of this output and earlier ones (Liu et al.
2022). Later calls give the output of the second call the weight 0."""


def pndm(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table of `steps + 1` calls (1 for a single step) without the first `skipped`.

    As in diffusers, the second call of a table always goes from one stride above its timestep to
    its timestep. After skipped calls, an init image is thus one level noisier than the timestep
    that the model gets.
    """
    stride = schedule.num_train_timesteps // steps
    timesteps = [int(t) for t in schedule.timesteps(steps, default_spacing="leading")]
    timesteps = [*timesteps[:2], *timesteps[1:]][skipped:]
    calls = [(t, t, t - stride) for t in timesteps]  # the model's timestep, start, end
    if len(calls) > 1:
        second = timesteps[1]
        calls[1] = (second, second + stride, second)
    rows: list[list[float]] = []
    for index, (timestep, start, end) in enumerate(calls):
        weights = _WEIGHTS[min(index, len(_WEIGHTS) - 1)]
        keep, gain = _transfer(schedule, start, end)
        lags = [gain * weight for weight in weights]
        if index == 1:
            # The first sample is (x - gain h') / keep, with keep and gain of the first call.
            first_keep, first_gain = _transfer(schedule, *calls[0][1:])
            lags[1] -= keep * first_gain / first_keep
            keep /= first_keep
        rows.append(make_row(timestep, keep=keep, lags=tuple(lags)))
    return make_table(rows, [_level(schedule, t) for t in timesteps], schedule.prediction_type)


def _level(schedule: NoiseSchedule, timestep: int) -> NoiseLevel:
    if timestep >= 0:
        return NoiseLevel.from_alpha_cumprod(schedule.alphas_cumprod[timestep])
    if schedule.set_alpha_to_one:
        return CLEAN
    return NoiseLevel.from_alpha_cumprod(schedule.alphas_cumprod[0])


def _transfer(schedule: NoiseSchedule, start: int, end: int) -> tuple[float, float]:
    """Return the factors of the sample and of the combined output (Liu et al. 2022, eq. 9)."""
    before, after = _level(schedule, start), _level(schedule, end)
    keep = after.alpha / before.alpha
    span = after.alpha**2 - before.alpha**2
    gain = -span / (before.alpha * (before.alpha * after.sigma + before.sigma * after.alpha))
    if schedule.prediction_type is Prediction.V:
        return keep + gain * before.sigma, gain * before.alpha
    return keep, gain
