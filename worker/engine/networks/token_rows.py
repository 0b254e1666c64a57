"""Keep the tokens of a transformer in rows of a TPU's memory.

Input and output are the same tokens `[b, n, d]`. It depends on no network.
"""

import jax
from jax.experimental.layout import Layout, with_layout_constraint

from imagefleet.worker.engine.placement.mesh import is_bfloat16_on_tpu


def in_rows(x: jax.Array) -> jax.Array:
    """Return `x`, on TPU with the numbers of a token side by side in memory.

    XLA may otherwise transpose the tokens between two blocks, since norms add up their numbers.
    A product with a transposed result takes longer. docs/tpu.md has the estimates.
    """
    if not is_bfloat16_on_tpu(x):
        return x
    rows: jax.Array = with_layout_constraint(x, Layout(tuple(range(x.ndim))))
    return rows
