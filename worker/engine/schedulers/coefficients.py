"""What every sampler is here: a table made on the host, and one pure step on the devices.

A row holds a timestep and the coefficients of

    h   = P x + Q m, no larger than a bound      m: the model's output at that timestep
    x'  = A x + D m + B0 h + B1 h' + … + B4 h'''' + S z
                                                 h', h'', …: the h of earlier rows; z: fresh noise

so that any sampler, step count and guidance in any slot share one executable. A row is one call of
the model: PNDM has one more than steps. It also holds how to read the clean sample the model has in
mind, for previews, and the level of noise it arrives at, where inpainting puts back what is kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.schedulers.noise_levels import CLEAN, Level, clean_sample

LAGS: Final = 5
"""h of this row and of four earlier ones: PNDM's fourth row reaches back over one it skips."""
COLUMNS: Final = 11 + LAGS
(
    _TIMESTEP,
    _SAMPLE_TO_H,
    _OUTPUT_TO_H,
    _SAMPLE_TO_CLEAN,
    _OUTPUT_TO_CLEAN,
    BOUND,
    _KEEP,
    _DIRECT,
    FRESH,
    _ARRIVING_ALPHA,
    _ARRIVING_SIGMA,
    _LAG0,
) = range(12)


@dataclass(frozen=True)
class Table:
    """One sampler at one step count, from one step on."""

    rows: NDArray[np.float32]
    """`[calls, COLUMNS]`."""
    start: Level
    """The noise of the first row: what a picture to start from is mixed with."""
    initial_scale: float = 1.0
    """Standard deviation of the noise it starts from when there is no picture."""

    def padded(self, length: int) -> NDArray[np.float32]:
        """`[length, COLUMNS]`; the added rows are never reached."""
        return np.pad(self.rows, ((0, length - len(self.rows)), (0, 0)))


def row(
    timestep: float,
    *,
    keep: float,
    lags: tuple[float, ...],
    to_h: tuple[float, float] = (0.0, 1.0),
    bound: float = math.inf,
    direct: float = 0.0,
    fresh: float = 0.0,
) -> list[float]:
    """One row: A, the B's, (P, Q), the bound of h, D and S. By default h is the model's output.

    `table` adds what the level it begins at and the one it arrives at give.
    """
    past = [*lags, *[0.0] * (LAGS - len(lags))]
    return [timestep, *to_h, 0.0, 0.0, bound, keep, direct, fresh, *CLEAN, *past]


def table(
    rows: list[list[float]],
    levels: Sequence[Level],
    prediction: str,
    initial_scale: float = 1.0,
) -> Table:
    """Rows to a table, for a model that predicts so; `levels` are those at which they begin."""
    made = np.array(rows, np.float32).reshape(-1, COLUMNS)
    to_clean = [clean_sample(prediction, level) for level in levels]
    made[:, _SAMPLE_TO_CLEAN : _OUTPUT_TO_CLEAN + 1] = to_clean
    made[:, _ARRIVING_ALPHA : _ARRIVING_SIGMA + 1] = [*levels[1:], CLEAN]
    return Table(made, levels[0], initial_scale)


def row_at(rows: jax.Array, position: jax.Array) -> jax.Array:
    """`rows [b, calls, COLUMNS]`, `position [b]` to `[b, COLUMNS]`.

    A masked sum rather than a gather: each slot stays on its device.
    """
    here = jnp.arange(rows.shape[1]) == position[:, None]  # [b, calls]
    return jnp.sum(jnp.where(here[:, :, None], rows, 0), axis=1)


def timestep(row: jax.Array) -> jax.Array:
    """`[b, COLUMNS]` to `[b]`."""
    return row[:, _TIMESTEP]


def clean(row: jax.Array, x: jax.Array, output: jax.Array) -> jax.Array:
    """The clean sample that the model has in mind: what `output` says of `x`, `[b, h, w, c]`."""
    column = row[:, :, None, None, None]
    return column[:, _SAMPLE_TO_CLEAN] * x + column[:, _OUTPUT_TO_CLEAN] * output


def arriving(row: jax.Array, clean: jax.Array, noise: jax.Array) -> jax.Array:
    """`clean` with as much of `noise` (both `[b, h, w, c]`) as is left after this row."""
    column = row[:, :, None, None, None]
    return column[:, _ARRIVING_ALPHA] * clean + column[:, _ARRIVING_SIGMA] * noise


def step(
    x: jax.Array, output: jax.Array, history: jax.Array, fresh: jax.Array, row: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Apply a row to each slot, in float32.

    Args:
        x: Samples `[b, h, w, c]`.
        output: The model's, of the same shape.
        history: Earlier h, the latest first, `[b, LAGS - 1, h, w, c]`.
        fresh: Noise that no other step sees, of the shape of `x`.
        row: `[b, COLUMNS]`.

    Returns:
        The next samples and the next history.
    """
    column = row[:, :, None, None, None]  # [b, COLUMNS, 1, 1, 1]
    bound = column[:, BOUND]
    h = jnp.clip(column[:, _SAMPLE_TO_H] * x + column[:, _OUTPUT_TO_H] * output, -bound, bound)
    recent = jnp.concatenate([h[:, None], history], axis=1)  # [b, LAGS, h, w, c]
    moved = column[:, _KEEP] * x + column[:, _DIRECT] * output + column[:, FRESH] * fresh
    # Not an einsum: on accelerators its products would be rounded to bfloat16.
    return moved + jnp.sum(column[:, _LAG0:] * recent, axis=1), recent[:, :-1]
