"""Count the cycles of the kernels in a compiled TPU program, for which its compiler gives none.

Input: the text of a scheduled program and a generation. Output: the cycles of each kernel, or None
for one that nobody has counted.

The counts follow from the schedules that the compiler writes for each kernel (docs/tpu.md says how
to get them). A schedule may issue products faster than the matrix unit takes them, so its bundles
alone say too little. The constants here are those of an execution in order, in which a product
waits until its unit is free.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import jax.numpy as jnp

from imagefleet.worker.engine.kernels.attention import largest_block
from imagefleet.worker.engine.kernels.attention_backend import TPU_LANES
from imagefleet.worker.engine.kernels.feed_forward_spec import KERNEL_NAME as FEED_FORWARD
from imagefleet.worker.engine.kernels.head_packing import KERNEL_NAME as PACKED_ATTENTION
from imagefleet.worker.engine.kernels.head_packing import HeadPacking
from imagefleet.worker.engine.kernels.head_projection_spec import KERNEL_NAME as HEAD_PROJECTION
from imagefleet.worker.engine.kernels.head_rotation_kernel import KERNEL_NAME as HEAD_ROTATION
from imagefleet.worker.engine.kernels.large_convolution_spec import KERNEL_NAME as CONVOLUTION
from imagefleet.worker.engine.kernels.large_convolution_spec import (
    NARROW_KERNEL_NAME as NARROW_CONVOLUTION,
)
from imagefleet.worker.engine.kernels.large_convolution_spec import fill_up
from imagefleet.worker.engine.kernels.packed_attention_kernel import (
    LARGE_BLOCK,
    SMALL_BLOCK,
    has_large_blocks,
)
from imagefleet.worker.engine.kernels.wide_attention_kernel import KERNEL_NAME as WIDE_ATTENTION
from imagefleet.worker.engine.kernels.wide_attention_kernel import LARGE_BLOCK as WIDE_BLOCK
from imagefleet.worker.engine.kernels.wide_attention_kernel import best_block
from imagefleet.worker.engine.placement.tpu_hosts import TpuGeneration

_KERNEL: Final = re.compile(
    r'custom_call_target="tpu_custom_call".*?operand_layout_constraints=\{(.*?)\}\}'
    r'(.*?op_name="([^"]*)")?'
)
_PACKED_HEADS: Final = re.compile(rf"{PACKED_ATTENTION}_(\d+)x(\d+)")
_FLASH: Final = "flash_attention"
"""Pallas' kernel for attention has this name."""
_XLA_SOFTMAX: Final = "online-softmax"
"""XLA makes this kernel by itself, of a softmax of scores and the product with the values."""
_SHAPE: Final = re.compile(r"\w+\[([\d,]*)\]")

SOFTMAX_CYCLES: Final[Mapping[str, float]] = {
    "v2": 0.0,
    "v3": 0.0026,
    "v4": 0.002,
    "v5e": 0.0015,
    "v5p": 0.0009,
    "v6e": 0.0026,
}
"""By generation: cycles that Pallas' attention kernel takes for each score beside its two products.
It is the compiler's schedule of a layer with 4096 pixels and heads of 40, less the products at the
peak."""


@dataclass(frozen=True)
class Schedule:
    """What a kernel with a softmax takes, products included."""

    score_cycles: float
    """Each score takes these."""
    query_cycles: float
    """Each query of a head takes these for each block of keys, which begins and ends."""

    def cycles(self, *, queries: int, keys: int, max_keys: int) -> float:
        """Return the cycles for all queries of all heads.

        Args:
            queries: Of all images and heads together.
            keys: Of each query.
            max_keys: The most keys of a block.
        """
        has_blocks = keys <= max_keys or keys % TPU_LANES == 0
        block = largest_block(keys, max_keys) if has_blocks else max_keys
        blocks = -(-keys // block)
        return queries * (keys * self.score_cycles + blocks * self.query_cycles)


PACKED_CYCLES: Final[Mapping[str, tuple[Schedule, Schedule]]] = {
    "v2": (Schedule(0.01515, 1.013), Schedule(0.01664, 1.373)),
    "v3": (Schedule(0.01028, 0.972), Schedule(0.01062, 1.272)),
    "v4": (Schedule(0.00216, 0.226), Schedule(0.00223, 0.258)),
    "v5e": (Schedule(0.00292, 0.192), Schedule(0.00335, 0.226)),
    "v5p": (Schedule(0.00179, 0.052), Schedule(0.00177, 0.086)),
    "v6e": (Schedule(0.00157, 0.227), Schedule(0.00174, 0.254)),
}
"""By generation, it has the kernel for packed heads, of 40 channels and of wider heads. They are
fitted to 77 keys and to the largest block. 3 % are added, by which an earlier count of whole layers
was above that of one block. v3 and v5p have those of an
earlier, slower kernel."""
WIDE_CYCLES: Final[Mapping[str, Schedule]] = {
    "v5e": Schedule(0.00428, 0.229),
    "v6e": Schedule(0.00268, 0.127),
}
"""By generation, it has the kernel for heads of 128 channels, with blocks of 1,152 queries and keys
of which all count. With a mask a block takes 10 % more on v5e."""
XLA_SOFTMAX_CYCLES: Final[Mapping[str, Schedule]] = {
    "v5e": Schedule(0.0029, 2.07),
    "v5p": Schedule(0.0013, 1.21),
    "v6e": Schedule(0.00085, 1.68),
}
"""By generation, it has XLA's own kernel for a softmax, without the product that makes the scores.
They are fitted to blocks of 256 and 1,024 keys. XLA makes no such kernel for the others."""
_XLA_MAX_KEYS: Final = 1024

STAGING_CYCLES: Final[Mapping[str, float]] = {
    "v2": 0.0,
    "v3": 0.0,
    "v4": 0.0058,
    "v5e": 0.0055,
    "v5p": 0.0028,
    "v6e": 0.0048,
}
"""By generation: cycles that the convolution kernel takes for each number that it normalises and
stages. It is the compiler's schedule for a map of 512x512x128. v2 and v3 do not use this kernel."""
SUMMING_CYCLES: Final[Mapping[str, float]] = {
    "v2": 0.0,
    "v3": 0.0,
    "v4": 0.0016,
    "v5e": 0.0003,
    "v5p": 0.00015,
    "v6e": 0.0006,
}
"""By generation: cycles that the convolution kernel takes for each number of the result which it
adds up for the next norm. On v4 and v6e its bundles are that many more than its products need; on
v5e and v5p, where they are fewer, an execution in order takes that much longer with the sums."""
NARROW_CYCLES: Final[Mapping[str, tuple[float, float]]] = {
    "v4": (0.0037, 0.12),
    "v5e": (0.0052, 0.11),
    "v5p": (0.0025, 0.085),
    "v6e": (0.0042, 0.12),
}
"""By generation: cycles that the kernel for narrow results takes for each number that it normalises
and multiplies, and for each pixel. They are those of a map of 512x512x128, executed in order."""
HEAD_ROTATION_CYCLES: Final[Mapping[str, float]] = {"v5e": 0.0085, "v6e": 0.0080}
"""By generation: cycles that the kernel takes for each number that it normalises and rotates. They
are the bundles of 256 tokens of 30 heads. It has no products."""
FEED_FORWARD_FACTOR: Final[Mapping[str, float]] = {"v5e": 1.02, "v6e": 1.17}
"""The schedule of a chunk of the feed-forward kernel, relative to its products at the peak with
channels padded to 128."""
FEED_FORWARD_NORM_CYCLES: Final = 0.0032
"""Cycles that the feed-forward kernel takes for each number that it normalises and adds."""
HEAD_PROJECTION_FACTOR: Final = 1.26
"""The schedule of the kernel that projects heads on v5e, relative to its products at the peak with
channels padded to 128."""
LORA_FACTOR: Final = 1.5
"""The same for the products of LoRA beside a projection: 1.33 with three projections, 2.0 with one,
as all products of a block wait for one another."""
HEAD_PROJECTION_NORM_CYCLES: Final = 0.0038
"""Cycles that this kernel takes for each number that it normalises."""
_MIN_SUMMED: Final = 256
"""A row of fewer pixels takes as long, where this kernel adds up its products."""
_NARROW_HEAD: Final = 40
_STAGED_TWICE: Final = 10 / 8
"""The kernel stages ten rows for a block of eight."""


def kernel_cycles(text: str, generation: TpuGeneration) -> Iterator[float | None]:
    """Yield the cycles of each kernel in the order of the text.

    None stands for a kernel that is neither ours, nor Pallas' attention, nor XLA's softmax.
    """
    for kernel in _KERNEL.finditer(text):
        operands = [
            [int(side) for side in shape.split(",") if side] for shape in _SHAPE.findall(kernel[1])
        ]
        yield _cycles(kernel[3] or "", operands, generation)


def _cycles(name: str, operands: list[list[int]], generation: TpuGeneration) -> float | None:
    if name == _XLA_SOFTMAX:
        return _xla_softmax_cycles(operands, generation)
    for part, count in _COUNTS.items():
        if part in name:
            return count(operands, generation)
    if packed := _PACKED_HEADS.search(name):
        heads, head_dim = map(int, packed.groups())
        return _packed_cycles(operands, HeadPacking(heads=heads, head_dim=head_dim), generation)
    return _flash_cycles(operands, generation) if _FLASH in name else None


def _packed_cycles(
    operands: list[list[int]], packing: HeadPacking, generation: TpuGeneration
) -> float:
    (batch, _, queries), (_, keys, _), *_ = operands
    is_large = has_large_blocks(packing, generation.device_kind, jnp.bfloat16)
    _, max_keys = LARGE_BLOCK if is_large else SMALL_BLOCK
    schedule = PACKED_CYCLES[generation.name][packing.head_dim > _NARROW_HEAD]
    return schedule.cycles(queries=batch * packing.heads * queries, keys=keys, max_keys=max_keys)


def _wide_cycles(operands: list[list[int]], generation: TpuGeneration) -> float | None:
    """Count whole blocks. The operands are counts, queries, keys, values and a mask."""
    _, (batch, queries, channels), (_, keys, _), *_ = operands
    if (schedule := WIDE_CYCLES.get(generation.name)) is None:
        return None
    sizes = (best_block(count, WIDE_BLOCK) for count in (queries, keys))
    queries, keys = (
        -(-count // size) * size for count, size in zip((queries, keys), sizes, strict=True)
    )
    rows = batch * channels // TPU_LANES * queries
    return schedule.cycles(queries=rows, keys=keys, max_keys=WIDE_BLOCK)


def _xla_softmax_cycles(operands: list[list[int]], generation: TpuGeneration) -> float | None:
    """Count by the schedule. The operands are the scores and the values."""
    (*batch, queries, keys), *_ = operands
    if (schedule := XLA_SOFTMAX_CYCLES.get(generation.name)) is None:
        return None
    return schedule.cycles(queries=math.prod(batch) * queries, keys=keys, max_keys=_XLA_MAX_KEYS)


def _flash_cycles(operands: list[list[int]], generation: TpuGeneration) -> float:
    """Count both products of a score at the peak, with heads padded to 128, and the softmax."""
    (batch, heads, queries, head_dim), (_, _, keys, _), *_ = operands
    products = 2 * 2 * -(-head_dim // 128) * 128 / generation.flops_per_cycle
    return batch * heads * queries * keys * (products + SOFTMAX_CYCLES[generation.name])


def _feed_forward_cycles(operands: list[list[int]], generation: TpuGeneration) -> float:
    """Count the products, and the norm. The operands are pixels, two vectors and the weights."""
    (pixels, channels), _, _, (_, twice_hidden), *_ = operands
    padded = -(-channels // 128) * 128
    products = 3 * pixels * padded * twice_hidden / generation.flops_per_cycle
    factor = FEED_FORWARD_FACTOR[generation.name]
    return factor * products + pixels * channels * FEED_FORWARD_NORM_CYCLES


def _head_projection_cycles(operands: list[list[int]], generation: TpuGeneration) -> float | None:
    """Count the products, and the norm. The operands are pixels, two vectors, and the matrices of
    each projection: one, or three with LoRA, of which `[b, 1, k]` has scales."""
    (batch, length, channels), _, _, *others = operands
    if generation.name != "v5e":
        return None
    ranks = {sides[2] for sides in others if len(sides) == 3}
    weighted = 0.0
    for sides in others:
        if len(sides) == 2:
            factor = LORA_FACTOR if ranks & {*sides} else HEAD_PROJECTION_FACTOR
            weighted += factor * math.prod(map(fill_up, sides))
    normalized = batch * length * channels * HEAD_PROJECTION_NORM_CYCLES
    return 2 * batch * length * weighted / generation.flops_per_cycle + normalized


def _head_rotation_cycles(operands: list[list[int]], generation: TpuGeneration) -> float | None:
    """Count the numbers of the first operand."""
    if (cycles := HEAD_ROTATION_CYCLES.get(generation.name)) is None:
        return None
    return math.prod(operands[0]) * cycles


def _convolution_cycles(operands: list[list[int]], generation: TpuGeneration) -> float:
    """Count the products at the peak, padded to the columns of the matrix unit, the staging of the
    map, and the sums of the result.

    The operands are the map three times (a block, the rows before and after it), and the weights:
    matrices of the channels side by side that a product takes.
    """
    x, _, _, kernel, *_ = operands
    side = 256 if generation.name == "v6e" else 128
    *matrices, columns, channels_out = kernel
    padded = math.prod(-(-length // side) * side for length in (columns, channels_out))
    pixels, lanes = math.prod(x[:3]), -(-x[3] // 128) * 128
    products = 2 * pixels * math.prod(matrices) * padded / generation.flops_per_cycle
    staging = _STAGED_TWICE * pixels * lanes * STAGING_CYCLES[generation.name]
    phases, lanes_out = math.prod(matrices[:2]) if len(matrices) > 1 else 1, -(-channels_out // 128)
    sums = phases * pixels * 128 * lanes_out * SUMMING_CYCLES[generation.name]
    return products + staging + sums


def _narrow_cycles(operands: list[list[int]], generation: TpuGeneration) -> float | None:
    """Count by the schedule. The first operand is the map. Its products take less than its norm."""
    (*rows, width, channels), *_ = operands
    if (cycles := NARROW_CYCLES.get(generation.name)) is None:
        return None
    by_number, by_pixel = cycles
    staged = _STAGED_TWICE * width * fill_up(channels)
    return math.prod(rows) * (staged * by_number + max(width, _MIN_SUMMED) * by_pixel)


_COUNTS: Final[Mapping[str, Callable[[list[list[int]], TpuGeneration], float | None]]] = {
    FEED_FORWARD: _feed_forward_cycles,
    HEAD_PROJECTION: _head_projection_cycles,
    HEAD_ROTATION: _head_rotation_cycles,
    NARROW_CONVOLUTION: _narrow_cycles,
    CONVOLUTION: _convolution_cycles,
    WIDE_ATTENTION: _wide_cycles,
}
"""By a part of the name of a kernel, the first of which counts."""
