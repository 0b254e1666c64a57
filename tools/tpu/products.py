"""Compare what the TPU's compiler says of large products with what its matrix unit takes for them.

Input: the text of a scheduled program. Output: cycles. On v6e the compiler says of plain products
up to twice the cycles of the peak, so that a program's share of the peak is known only between the
two.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from imagefleet.worker.engine.placement.tpu_hosts import TpuGeneration

_CYCLES: Final = re.compile(r'"estimated_cycles":"(\d+)"')
_CALLS: Final = re.compile(r"calls=%?([\w.<>-]+)")
_PRODUCT: Final = re.compile(
    r"= \w+\[([\d,]*)\]\S* convolution\(%?([\w.<>-]+), %?([\w.<>-]+)\)"
    r".*dim_labels=\w+_(\w+)->(\w+)"
)
"""The compiler writes products as convolutions. The labels are those of the second operand and of
the result."""
_LARGE_ROWS: Final = 256
"""A product of fewer rows is limited by the reading of its weights."""


class ProductCycles(NamedTuple):
    """It has the cycles of all instructions with large products."""

    estimated: float
    """With what they compute beside the products."""
    floor: float
    """The matrix unit takes these for the products alone."""


def product_cycles(
    computations: Mapping[str, Sequence[str]], trips: Mapping[str, int], generation: TpuGeneration
) -> ProductCycles:
    """Return the cycles of a run, by the trips of each computation."""
    estimated = floor = 0.0
    for name, count in trips.items():
        for line in computations[name]:
            cycles = _CYCLES.search(line)
            flops = sum(_flops_of(line, name, computations)) if cycles else 0
            if cycles and flops:
                estimated += count * float(cycles[1])
                floor += count * flops / generation.flops_per_cycle
    return ProductCycles(estimated, floor)


def _flops_of(line: str, name: str, computations: Mapping[str, Sequence[str]]) -> Iterator[int]:
    """Yield the FLOPs of each large product of an instruction of the computation `name`."""
    if product := _PRODUCT.search(line):
        result, _, weights, of_weights, of_result = product.groups()
        sides, columns = _sides(result), of_result.index("f")
        shape = re.search(
            rf"%?{re.escape(weights)} = \w+\[([\d,]*)\]", "\n".join(computations[name])
        )
        if shape and math.prod(sides) // sides[columns] >= _LARGE_ROWS:
            terms = _sides(shape[1])[of_weights.index("i")]
            yield 2 * math.prod(sides) * terms
    elif (called := _CALLS.search(line)) and called[1] in computations:
        for inner in computations[called[1]]:
            yield from _flops_of(inner, called[1], computations)


def _sides(text: str) -> list[int]:
    return [int(side) for side in text.split(",") if side]
