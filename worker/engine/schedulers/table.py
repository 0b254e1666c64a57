"""What every sampler is here: a table made on the host, and one pure step on the devices.

A row holds a timestep and the coefficients of

    h   = P x + Q m                      m: the model's output at that timestep
    x'  = A x + B0 h + B1 h' + … + B4 h''''     h', h'', …: the h of earlier rows

so that any sampler, step count and guidance in any slot share one executable. A row is one call of
the model: PNDM has one more than steps.
"""

from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

LAGS: Final = 5
"""h of this row and of four earlier ones: PNDM's fourth row reaches back over one it skips."""
COLUMNS: Final = 4 + LAGS
_TIMESTEP, _SAMPLE_TO_H, _OUTPUT_TO_H, _KEEP, _LAG0 = range(5)


@dataclass(frozen=True)
class Table:
    """One sampler at one step count."""

    rows: NDArray[np.float32]
    """`[calls, COLUMNS]`."""
    initial_scale: float = 1.0
    """Standard deviation of the noise it starts from."""

    def padded(self, length: int) -> NDArray[np.float32]:
        """`[length, COLUMNS]`; the added rows are never reached."""
        return np.pad(self.rows, ((0, length - len(self.rows)), (0, 0)))


def row(
    timestep: float,
    *,
    keep: float,
    lags: tuple[float, ...],
    to_h: tuple[float, float] = (0.0, 1.0),
) -> list[float]:
    """One row: A, the B's, and (P, Q). By default h is the model's output itself."""
    return [timestep, *to_h, keep, *lags, *[0.0] * (LAGS - len(lags))]


def table(rows: list[list[float]], initial_scale: float = 1.0) -> Table:
    """Rows to a table."""
    return Table(np.array(rows, np.float32).reshape(-1, COLUMNS), initial_scale)


def row_at(rows: jax.Array, position: jax.Array) -> jax.Array:
    """`rows [b, calls, COLUMNS]`, `position [b]` to `[b, COLUMNS]`.

    A masked sum rather than a gather: each slot stays on its device.
    """
    here = jnp.arange(rows.shape[1]) == position[:, None]  # [b, calls]
    return jnp.sum(jnp.where(here[:, :, None], rows, 0), axis=1)


def timestep(row: jax.Array) -> jax.Array:
    """`[b, COLUMNS]` to `[b]`."""
    return row[:, _TIMESTEP]


def step(
    x: jax.Array, output: jax.Array, history: jax.Array, row: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Apply a row to each slot, in float32.

    Args:
        x: Samples `[b, h, w, c]`.
        output: The model's, of the same shape.
        history: Earlier h, the latest first, `[b, LAGS - 1, h, w, c]`.
        row: `[b, COLUMNS]`.

    Returns:
        The next samples and the next history.
    """
    column = row[:, :, None, None, None]  # [b, COLUMNS, 1, 1, 1]
    h = column[:, _SAMPLE_TO_H] * x + column[:, _OUTPUT_TO_H] * output
    recent = jnp.concatenate([h[:, None], history], axis=1)  # [b, LAGS, h, w, c]
    # Not an einsum: on accelerators its products would be rounded to bfloat16.
    moved = column[:, _KEEP] * x + jnp.sum(column[:, _LAG0:] * recent, axis=1)
    return moved, recent[:, :-1]
