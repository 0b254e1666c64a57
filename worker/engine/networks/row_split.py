"""Compute layers of a network with whole weights on devices that hold parts of them.

Input: layers, what they compute, and maps. Output: what they compute. It depends on no network. See
`placement.rows` for the reason.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from flax import nnx

from imagefleet.worker.engine.networks.lora_layers import SlotScales
from imagefleet.worker.engine.placement.rows import (
    every_device_alone,
    gather,
    rows_to_split,
    shares_weights,
    split_rows,
)

T = TypeVar("T")

_PIXELS_OF_A_CHANNEL: Final = 3
"""A transformer block of c channels has 18 c² weights, of which each of two devices receives half,
18 c² bytes in bfloat16. If they split its layers instead, they add up or gather three maps, 6 c
bytes for each pixel of all rows that they share, and wait for each of them. Blocks of convolutions
have fewer weights for each map."""


def splits_rows(rows: int, pixels: int, channels: int) -> bool:
    """Return whether the devices that share weights compute different rows of such maps.

    Args:
        rows: Of the whole batch.
        pixels: Of a map.
        channels: Of a map.
    """
    return rows_to_split(rows) * pixels >= _PIXELS_OF_A_CHANNEL * channels


def compute_by_rows(compute: Callable[..., T], layers: Any, *arrays: Any) -> T:
    """Return `compute(layers, *arrays)`, where each device has the whole weights for its rows.

    Args:
        compute: Of what it returns, each array is split along its first axis.
        layers: A module, or a tuple of them.
        arrays: Trees of arrays, split along their first axis.
    """
    with every_device_alone():
        graph, *states = nnx.split(layers, SlotScales, ...)
        scales, weights = states
        whole = nnx.merge(graph, scales, gather(weights))
        return split_rows(compute(whole, *split_rows(arrays)))


def compute_together(compute: Callable[..., T], layers: Any, *arrays: Any) -> T:
    """Return `compute(layers, *arrays)`, where devices that share weights have the same rows."""
    return compute(layers, *(split_rows(arrays) if shares_weights() else arrays))
