"""Read from a compiled TPU program what its compiler says of its memory and time.

Input: an executable for devices that need not be there. Output: bytes, FLOPs and cycles. It runs
nothing.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax.numpy as jnp

from imagefleet.worker.engine.kernels.attention import largest_block
from imagefleet.worker.engine.kernels.feed_forward_spec import KERNEL_NAME as FEED_FORWARD
from imagefleet.worker.engine.kernels.head_packing import KERNEL_NAME as PACKED_ATTENTION
from imagefleet.worker.engine.kernels.head_packing import HeadPacking
from imagefleet.worker.engine.kernels.large_convolution_spec import KERNEL_NAME as CONVOLUTION
from imagefleet.worker.engine.kernels.packed_attention_kernel import (
    LARGE_BLOCK,
    SMALL_BLOCK,
    has_large_blocks,
)
from imagefleet.worker.engine.placement.tpu_hosts import TpuGeneration

_COMPUTATION: Final = re.compile(r"^(ENTRY )?%?([\w.<>-]+) \(.*\{$")
_CYCLES: Final = re.compile(r'"estimated_cycles":"(\d+)"')
_LOOP: Final = re.compile(r" while\(.*condition=%?([\w.<>-]+), body=%?([\w.<>-]+)")
_LIMIT: Final = re.compile(r" s32\[\]\S* constant\((\d+)\)")
_KERNEL: Final = re.compile(
    r'custom_call_target="tpu_custom_call".*?operand_layout_constraints=\{(.*?)\}\}'
    r'(.*?op_name="([^"]*)")?'
)
_PACKED_HEADS: Final = re.compile(rf"{PACKED_ATTENTION}_(\d+)x(\d+)")
_SHAPE: Final = re.compile(r"\w+\[([\d,]+)\]")
_COLLECTIVE: Final = re.compile(
    r" (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)

SOFTMAX_CYCLES: Final[Mapping[str, float]] = {
    "v2": 0.0,
    "v3": 0.0026,
    "v4": 0.002,
    "v5e": 0.0015,
    "v5p": 0.0009,
    "v6e": 0.0026,
}
"""By generation: cycles that the attention kernel takes for each score beside its two products. It
is the compiler's schedule of a layer with 4096 pixels and heads of 40, less the products at the
peak."""


@dataclass(frozen=True)
class PackedSchedule:
    """What the kernel of packed heads takes by the compiler's schedules, with both products.

    They are fitted to the schedule of 77 keys and that of the largest block.
    """

    score_cycles: float
    """For each score."""
    query_cycles: float
    """For each query and head of a block of keys: what begins and ends the block."""


PACKED_CYCLES: Final[Mapping[str, tuple[PackedSchedule, PackedSchedule]]] = {
    "v2": (PackedSchedule(0.00872, 1.054), PackedSchedule(0.00908, 1.407)),
    "v3": (PackedSchedule(0.00808, 0.973), PackedSchedule(0.00852, 1.279)),
    "v4": (PackedSchedule(0.00220, 0.176), PackedSchedule(0.00229, 0.253)),
    "v5e": (PackedSchedule(0.00272, 0.116), PackedSchedule(0.00283, 0.199)),
    "v5p": (PackedSchedule(0.00140, 0.067), PackedSchedule(0.00143, 0.122)),
    "v6e": (PackedSchedule(0.00171, 0.182), PackedSchedule(0.00177, 0.235)),
}
"""By generation: for heads of 40 channels, and for wider ones."""

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
FEED_FORWARD_FACTOR: Final[Mapping[str, float]] = {"v5e": 1.02, "v6e": 1.17}
"""The schedule of a chunk of the feed-forward kernel, relative to its products at the peak with
channels padded to 128."""
FEED_FORWARD_NORM_CYCLES: Final = 0.0032
"""Cycles that the feed-forward kernel takes for each number that it normalises and adds."""
_NARROW_HEAD: Final = 40
_STAGED_TWICE: Final = 10 / 8
"""The kernel stages ten rows for a block of eight."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The compiler's account of one program, for one device."""

    argument_bytes: int
    temporary_bytes: int
    """With the program's code and those results that do not take the place of arguments."""
    flops: float
    cycles: float
    """The compiler's estimate, without kernels."""
    kernel_cycles: float
    collectives: int

    @property
    def total_bytes(self) -> int:
        """Return the bytes that the device needs to run the program."""
        return self.argument_bytes + self.temporary_bytes

    def milliseconds(self, generation: TpuGeneration) -> float:
        """Return the estimated time."""
        return 1e3 * (self.cycles + self.kernel_cycles) / generation.clock_hz

    def share_of_peak(self, generation: TpuGeneration) -> float:
        """Return the FLOPs as a share of those that the device could do in the estimated time."""
        return self.flops / (generation.flops_per_cycle * (self.cycles + self.kernel_cycles))


def read_estimate(compiled: Any, generation: TpuGeneration) -> Estimate:
    """Read the account of a `jax.stages.Compiled`."""
    memory, costs, text = compiled.memory_analysis(), compiled.cost_analysis(), compiled.as_text()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Estimate(
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes + memory.generated_code_size_in_bytes + results,
        flops=float(costs.get("flops", 0.0)),
        cycles=program_cycles(text),
        kernel_cycles=sum(kernel_cycles(text, generation)),
        collectives=len(_COLLECTIVE.findall(text)),
    )


def program_cycles(text: str) -> float:
    """Sum the cycles of all instructions of a scheduled program, those in loops once a trip."""
    entry, computations = "", dict[str, list[str]]()
    name = ""
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            name = header[2]
            entry = name if header[1] else entry
        computations.setdefault(name, []).append(line)

    def cycles_of(name: str) -> float:
        total = 0.0
        for line in computations[name]:
            total += sum(map(float, _CYCLES.findall(line)))
            if loop := _LOOP.search(line):
                # A loop made by `lax.map` counts from 0 up to the constant in its condition.
                limits = _LIMIT.findall("\n".join(computations[loop[1]]))
                total += max(map(int, limits), default=1) * cycles_of(loop[2])
        return total

    return cycles_of(entry)


def kernel_cycles(text: str, generation: TpuGeneration) -> Iterator[float]:
    """Yield the cycles of each kernel of ours, for which the compiler gives no estimate."""
    kind = generation.name
    for kernel in _KERNEL.finditer(text):
        shapes = [[int(side) for side in shape.split(",")] for shape in _SHAPE.findall(kernel[1])]
        name = kernel[3] or ""
        if FEED_FORWARD in name:
            yield _feed_forward_cycles(shapes, generation)
        elif CONVOLUTION in name:
            yield _convolution_cycles(shapes, generation)
        elif packed := _PACKED_HEADS.search(name):
            (batch, _, queries), (_, keys, _), *_ = shapes
            heads, head_dim = map(int, packed.groups())
            schedule = PACKED_CYCLES[kind][head_dim > _NARROW_HEAD]
            packing = HeadPacking(heads=heads, head_dim=head_dim)
            is_large = has_large_blocks(packing, generation.device_kind, jnp.bfloat16)
            _, max_keys = LARGE_BLOCK if is_large else SMALL_BLOCK
            blocks = keys // largest_block(keys, max_keys)
            of_query = keys * schedule.score_cycles + blocks * schedule.query_cycles
            yield batch * heads * queries * of_query
        else:
            (batch, heads, queries, head_dim), (_, _, keys, _), *_ = shapes
            scores = batch * heads * queries * keys
            yield scores * (_product_cycles(head_dim, generation) + SOFTMAX_CYCLES[kind])


def _product_cycles(head_dim: int, generation: TpuGeneration) -> float:
    """Count both products of a score at the peak, with heads padded to 128."""
    return 2 * 2 * -(-head_dim // 128) * 128 / generation.flops_per_cycle


def _feed_forward_cycles(shapes: list[list[int]], generation: TpuGeneration) -> float:
    """Count the products, and the norm. The operands are pixels, two vectors and the weights."""
    (pixels, channels), _, _, (_, twice_hidden), *_ = shapes
    padded = -(-channels // 128) * 128
    products = 3 * pixels * padded * twice_hidden / generation.flops_per_cycle
    factor = FEED_FORWARD_FACTOR[generation.name]
    return factor * products + pixels * channels * FEED_FORWARD_NORM_CYCLES


def _convolution_cycles(shapes: list[list[int]], generation: TpuGeneration) -> float:
    """Count the products at the peak, padded to the columns of the matrix unit, and the staging.

    The operands are the map three times (a block, the rows before and after it), and the weights:
    matrices of the channels side by side that a product takes.
    """
    x, _, _, kernel, *_ = shapes
    side = 256 if generation.name == "v6e" else 128
    *matrices, columns, channels_out = kernel
    padded = math.prod(-(-length // side) * side for length in (columns, channels_out))
    pixels, lanes = math.prod(x[:3]), -(-x[3] // 128) * 128
    products = 2 * pixels * math.prod(matrices) * padded / generation.flops_per_cycle
    return products + _STAGED_TWICE * pixels * lanes * STAGING_CYCLES[generation.name]
