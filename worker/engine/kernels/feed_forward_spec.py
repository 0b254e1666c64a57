"""Define the weights and the blocks of a feed-forward layer that the kernel computes.

`feed_forward` chooses by them, and `feed_forward_kernel` computes with them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jax

KERNEL_NAME: Final = "feed_forward"
"""The programs contain this name, so that `tools.tpu` finds the kernel there."""
_MAX_BLOCK_VALUES: Final = 1024 * 1280
"""A block has at most this many values: pixels times channels."""
_MAX_BLOCK_PIXELS: Final = 2048
CHUNKS: Final = (512, 640, 256)

Activation = Callable[[jax.Array], jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class FeedForwardWeights:
    """It has the weights of a layer norm and of the GEGLU layers after it."""

    scale: Any
    """It is `[c]`, of the layer norm, and so is `shift`."""
    shift: Any
    proj_in: Any
    """It is `[c, 2h]`: the values, then the gates."""
    bias_in: Any
    proj_out: Any
    """It is `[h, c]`."""
    bias_out: Any


def block_pixels(pixels: int, channels: int) -> int:
    """Return the pixels of a block: of the multiples of 16 that divide `pixels`, the largest that
    fits; 0 if none does.
    """
    most = min(pixels, _MAX_BLOCK_VALUES // channels, _MAX_BLOCK_PIXELS)
    blocks = range(most - most % 16, 0, -16)
    return next((block for block in blocks if pixels % block == 0), 0)


def chunk_width(hidden: int) -> int:
    """Return how many hidden values a chunk has."""
    return next(chunk for chunk in CHUNKS if hidden % chunk == 0)
