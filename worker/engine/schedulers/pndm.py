"""PNDM without its Runge-Kutta start (Liu et al. 2022; PLMS): Stable Diffusion 1.4's own.

diffusers calls the model twice for the second step, and the second time goes back to the sample
it started from. That sample is a linear combination of what it became and of the output used, so
no copy of it is kept.
"""

from typing import Final

from imagefleet.worker.engine.schedulers.coefficients import Table, row, table
from imagefleet.worker.engine.schedulers.noise_levels import CLEAN, Level
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule

_WEIGHTS: Final = (
    (1.0,),
    (1 / 2, 1 / 2),
    (3 / 2, 0.0, -1 / 2),
    (23 / 12, -16 / 12, 0.0, 5 / 12),
    (55 / 24, -59 / 24, 37 / 24, 0.0, -9 / 24),
    (55 / 24, -59 / 24, 37 / 24, -9 / 24),
)
"""Adams-Bashforth over this output and earlier ones, per call; the second call's is left out by the
later ones."""


def pndm(noise: NoiseSchedule, steps: int, skipped: int = 0) -> Table:
    """`steps + 1` calls of the model (1 for a single step), less the `skipped` first ones.

    Whatever comes first, the second call starts where the first did and ends at its own timestep,
    in diffusers too: a picture to start from is then one level noisier than the model is told.
    """
    stride = noise.num_train_timesteps // steps
    visited = [int(t) for t in noise.timesteps(steps, default_spacing="leading")]
    visited = [*visited[:2], *visited[1:]][skipped:]
    calls = [(t, t, t - stride) for t in visited]
    if len(calls) > 1:
        second = visited[1]
        calls[1] = (second, second + stride, second)
    rows: list[list[float]] = []
    for index, (timestep, start, end) in enumerate(calls):
        weights = _WEIGHTS[min(index, len(_WEIGHTS) - 1)]
        keep, gain = _transfer(noise, start, end)
        lags = [gain * weight for weight in weights]
        if index == 1:  # back to the first sample: x0 = (x1 - gain h0) / keep, over the same span
            first_keep, first_gain = _transfer(noise, *calls[0][1:])
            lags[1] -= keep * first_gain / first_keep
            keep /= first_keep
        rows.append(row(timestep, keep=keep, lags=tuple(lags)))
    return table(rows, [_level(noise, t) for t in visited], noise.prediction_type)


def _level(noise: NoiseSchedule, timestep: int) -> Level:
    if timestep >= 0:
        return Level.of(noise.alphas_cumprod[timestep])
    return CLEAN if noise.set_alpha_to_one else Level.of(noise.alphas_cumprod[0])


def _transfer(noise: NoiseSchedule, start: int, end: int) -> tuple[float, float]:
    """Equation 9 of the paper: the factors of the sample and of the (combined) output."""
    here, there = _level(noise, start), _level(noise, end)
    keep = there.alpha / here.alpha
    span = there.alpha**2 - here.alpha**2
    gain = -span / (here.alpha * (here.alpha * there.sigma + here.sigma * there.alpha))
    if noise.prediction_type == "v_prediction":
        return keep + gain * here.sigma, gain * here.alpha
    return keep, gain
