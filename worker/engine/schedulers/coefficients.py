"""Define the form of all schedulers: a coefficient table from the host, a pure step on the devices.

A row of the table holds a timestep and the coefficients of

    h   = P x + Q m, clipped to a bound          m: the model's output at that timestep
    x'  = A x + D m + B0 h + B1 h' + … + B4 h'''' + S z
                                                 h', h'', …: the h of earlier rows; z: fresh noise

Slots with any scheduler, step count and guidance therefore share one executable. A row is one call
of the model; some schedulers have more rows than steps. A row also holds the coefficients of the
predicted x0, for previews, and the noise level after the row, at which inpainting restores the
parts to keep.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    LinearCombination,
    NoiseLevel,
    x0_from_output,
)
from imagefleet.worker.engine.schedulers.prediction import Prediction

LAGS: Final = 5
"""A row reads its own h and those of four earlier rows. PNDM's fifth row needs all of them, since
it skips the h of one row."""
COLUMNS: Final = 11 + LAGS
(
    TIMESTEP,
    _SAMPLE_TO_H,
    _OUTPUT_TO_H,
    _SAMPLE_TO_X0,
    _OUTPUT_TO_X0,
    BOUND,
    _KEEP,
    _DIRECT,
    FRESH,
    _NEXT_ALPHA,
    _NEXT_SIGMA,
    _LAG0,
) = range(12)


@dataclass(frozen=True)
class CoefficientTable:
    """It has a scheduler's coefficients for one step count, from its first step or a later one."""

    rows: NDArray[np.float32]
    """They are `[calls, COLUMNS]`."""
    start: NoiseLevel
    """It is the noise level before the first row, at which an init image is mixed with noise."""
    init_noise_sigma: float = 1.0
    """It is the standard deviation of the first sample without an init image."""
    scales_input: bool = False
    """Whether diffusers keeps samples as x0 + (sigma / alpha) eps and scales them before each call
    of the model (`scale_model_input`). Here they are alpha x0 + sigma eps in every table."""
    order: int = 1
    """It is the number of calls of the model in each step but the last, diffusers' `order`."""

    @property
    def input_scale(self) -> float:
        """Return the factor from diffusers' latents before the first row to samples here."""
        return self.start.alpha if self.scales_input else 1.0

    @property
    def output_scale(self) -> float:
        """Return the factor from samples after the last row to diffusers' latents."""
        return 1 / float(self.rows[-1, _NEXT_ALPHA]) if self.scales_input else 1.0

    def steps_before(self, cutoff: int) -> int:
        """Return how many steps diffusers leaves out for `denoising_start`.

        Those with timesteps below `cutoff` remain. A step with two calls is never split.
        """
        remaining = int((self.rows[:, TIMESTEP] < cutoff).sum())
        if self.order == 2 and remaining % 2 == 0:
            remaining += 1
        return (len(self.rows) - remaining) // self.order

    def until(self, cutoff: int) -> "CoefficientTable":
        """Return the table of the calls that diffusers makes before `denoising_end`: those with
        timesteps of at least `cutoff`."""
        calls = int((self.rows[:, TIMESTEP] >= cutoff).sum())
        return replace(self, rows=self.rows[:calls])

    def guided_calls(self, truncation: float) -> int:
        """Return how many of the first calls have guidance with this `cfg_truncation`.

        As in diffusers, the way from noise to the image is 0 at the timestep 1000 and 1 at 0. It is
        computed in float32 before it is compared. A truncation of 1 ends no guidance: the column of
        timesteps may hold other numbers, such as log(sigma) / 4 of EDM (Karras et al. 2022).
        """
        if truncation >= 1:
            return len(self.rows)
        noise = np.float32(1000)
        way = ((noise - self.rows[:, TIMESTEP]) / noise).astype(np.float64)
        return int(np.argmax([*(way > truncation), True]))

    def with_next_levels(self, levels: Mapping[int, NoiseLevel]) -> "CoefficientTable":
        """Return the table with other noise levels after some rows, for kept parts of an image."""
        rows = self.rows.copy()
        for index, level in levels.items():
            rows[index, _NEXT_ALPHA : _NEXT_SIGMA + 1] = level
        return replace(self, rows=rows)

    def padded(self, length: int) -> NDArray[np.float32]:
        """Return the rows padded to `[length, COLUMNS]`. The added rows are never used."""
        return np.pad(self.rows, ((0, length - len(self.rows)), (0, 0)))


def make_row(
    timestep: float,
    *,
    keep: float,
    lags: tuple[float, ...],
    to_h: tuple[float, float] = (0.0, 1.0),
    bound: float = math.inf,
    direct: float = 0.0,
    fresh: float = 0.0,
) -> list[float]:
    """Return one row. By default h is the model's output.

    Args:
        timestep: The timestep that the model gets.
        keep: A.
        lags: B0, B1 …
        to_h: P and Q.
        bound: The bound of the absolute value of h.
        direct: D.
        fresh: S.

    `make_table` fills in the columns that depend on the noise levels before and after the row.
    """
    past = [*lags, *[0.0] * (LAGS - len(lags))]
    return [timestep, *to_h, 0.0, 0.0, bound, keep, direct, fresh, *CLEAN, *past]


def make_table(
    rows: list[list[float]],
    levels: Sequence[NoiseLevel],
    prediction: Prediction | Sequence[LinearCombination],
    init_noise_sigma: float = 1.0,
    order: int = 1,
) -> CoefficientTable:
    """Complete the rows to a table.

    Args:
        rows: From `make_row`.
        levels: The noise level before each row.
        prediction: The model's `prediction_type`, or the predicted x0 of each row.
        init_noise_sigma: See `CoefficientTable`.
        order: See `CoefficientTable`, too.
    """
    completed = np.array(rows, np.float32).reshape(-1, COLUMNS)
    to_x0 = prediction
    if isinstance(prediction, Prediction):
        to_x0 = [x0_from_output(prediction, level) for level in levels]
    completed[:, _SAMPLE_TO_X0 : _OUTPUT_TO_X0 + 1] = to_x0
    completed[:, _NEXT_ALPHA : _NEXT_SIGMA + 1] = [*levels[1:], CLEAN]
    return CoefficientTable(completed, levels[0], init_noise_sigma, order=order)


def row_at(rows: jax.Array, position: jax.Array) -> jax.Array:
    """Return the row at each slot's position: `[b, calls, COLUMNS]` and `[b]` to `[b, COLUMNS]`.

    This is a masked sum and not a gather, so that each slot stays on its device.
    """
    is_at_position = jnp.arange(rows.shape[1]) == position[:, None]  # [b, calls]
    return jnp.sum(jnp.where(is_at_position[:, :, None], rows, 0), axis=1)


def timestep(row: jax.Array) -> jax.Array:
    """Return the timestep of each row: `[b, COLUMNS]` to `[b]`."""
    return row[:, TIMESTEP]


def predicted_x0(row: jax.Array, x: jax.Array, output: jax.Array) -> jax.Array:
    """Return the predicted x0 for sample `x` and model output `output`, all `[b, h, w, c]`."""
    column = row[:, :, None, None, None]
    return column[:, _SAMPLE_TO_X0] * x + column[:, _OUTPUT_TO_X0] * output


def noised_to_next_level(row: jax.Array, x0: jax.Array, noise: jax.Array) -> jax.Array:
    """Return `x0` with `noise` (both `[b, h, w, c]`) at the noise level after this row."""
    column = row[:, :, None, None, None]
    return column[:, _NEXT_ALPHA] * x0 + column[:, _NEXT_SIGMA] * noise


def step(
    x: jax.Array, output: jax.Array, history: jax.Array, fresh: jax.Array, row: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Apply a row to each slot, in float32.

    Args:
        x: Samples `[b, h, w, c]`.
        output: The model's output, of the same shape.
        history: The h of earlier rows, the latest first, `[b, LAGS - 1, h, w, c]`.
        fresh: Noise of this step only, of the shape of `x`.
        row: One row per slot, `[b, COLUMNS]`.

    Returns:
        The next samples and the next history.
    """
    column = row[:, :, None, None, None]  # [b, COLUMNS, 1, 1, 1]
    bound = column[:, BOUND]
    h = jnp.clip(column[:, _SAMPLE_TO_H] * x + column[:, _OUTPUT_TO_H] * output, -bound, bound)
    recent = jnp.concatenate([h[:, None], history], axis=1)  # [b, LAGS, h, w, c]
    without_h = column[:, _KEEP] * x + column[:, _DIRECT] * output + column[:, FRESH] * fresh
    # An einsum would round its products to bfloat16 on accelerators.
    return without_h + jnp.sum(column[:, _LAG0:] * recent, axis=1), recent[:, :-1]
