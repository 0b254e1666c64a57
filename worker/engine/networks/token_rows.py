"""Keep the tokens of a transformer in rows of a TPU's memory.

Input and output are the same tokens `[b, n, d]`. It depends on no network.
"""

import jax
from jax.experimental.layout import Layout, with_layout_constraint

from imagefleet.worker.engine.placement.mesh import (
    compute_on_each_device,
    devices_per_copy,
    is_bfloat16_on_tpu,
)


def in_rows(x: jax.Array) -> jax.Array:
    """Return `x`, on TPU with the numbers of a token side by side in memory.

    XLA may otherwise transpose the tokens between two blocks, since norms add up their numbers.
    A product with a transposed result takes longer. docs/log/tpu.md has the estimates. Each device
    keeps its own rows: XLA would gather those of all. Devices that share weights were not asked.
    """
    if is_bfloat16_on_tpu(x) and devices_per_copy() == 1:
        return compute_on_each_device(_in_rows, x)
    return x


def _in_rows(x: jax.Array) -> jax.Array:
    rows = Layout(tuple(range(x.ndim)))
    kept: jax.Array = with_layout_constraint(x, rows)  # type: ignore[no-untyped-call]
    return kept
