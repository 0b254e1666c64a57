"""Define a projection to packed heads that the kernel computes.

`head_projection` chooses by it, and `head_projection_kernel` computes with it.
"""

from dataclasses import dataclass, field
from typing import Final

import jax

KERNEL_NAME: Final = "head_projection"
"""The programs contain this name, so that `tools.tpu` finds the kernel there."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class LowRank:
    """It has the factors of LoRA beside a projection, which add (s * (x @ down)) @ up. The scales s
    of the columns of `down` are those of an image."""

    down: jax.Array
    """It is `[c, k]`."""
    up: jax.Array
    """It is `[k, r]`."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class HeadProjection:
    """It is a projection to packed heads, without a bias."""

    matrix: jax.Array
    """It is `[c, r]`."""
    lora: LowRank | None = None
    is_turned: bool = field(metadata={"static": True})
    """Whether the result is `[b, r, n]` in place of `[b, n, r]`."""
    scale: float = field(default=1.0, metadata={"static": True})
    """The result is multiplied with it before it is rounded."""
