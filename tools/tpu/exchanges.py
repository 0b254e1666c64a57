"""Count what the devices that share weights exchange in a compiled TPU program.

Input: the text of a scheduled program. Output: a number of exchanges, and bytes. Its compiler gives
cycles for neither, and this module guesses none.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_EXCHANGE: Final = re.compile(
    r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\("
    r".*channel_id=(\d+)"
)
_ARRAY: Final = re.compile(r"[a-z]+(\d*)\[([\d,]*)\]")
_PRED_BITS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Exchanges:
    """What a device exchanges with the others of its copy of the weights."""

    count: int
    """An exchange in parts, which run beside several products, counts once."""
    awaited_bytes: int
    """It receives these while it computes nothing."""
    hidden_bytes: int
    """It receives these while it computes."""


def read_exchanges(
    computations: Mapping[str, Sequence[str]], direct: Collection[str], devices: int
) -> Exchanges:
    """Return what a device exchanges in one run of a program.

    Args:
        computations: Lines of the program, by computation.
        direct: The entry and the bodies of loops. What stands in another computation is part of an
            instruction that computes, too. The trips of a loop are not counted.
        devices: That share a copy of the weights.
    """
    received: dict[object, tuple[float, bool]] = {}
    for name, lines in computations.items():
        for number, found in enumerate(map(_EXCHANGE.search, lines)):
            if found is None:
                continue
            result, kind, start, channel = found.groups()
            is_hidden = start is not None or name not in direct
            # Parts of an exchange share a channel, as do all exchanges of `shard_map`.
            key = (name, number) if name in direct else channel
            received[key] = (_received(kind, result, devices), is_hidden)
    return Exchanges(
        count=len(received),
        awaited_bytes=round(sum(size for size, is_hidden in received.values() if not is_hidden)),
        hidden_bytes=round(sum(size for size, is_hidden in received.values() if is_hidden)),
    )


def _received(kind: str, result: str, devices: int) -> float:
    """Return the bytes that a device receives in an exchange with this result."""
    # Those with a start name their operand, too, and an all-reduce may have several results.
    arrays = [_bytes(*array) for array in _ARRAY.findall(result)]
    if kind == "collective-permute":
        return max(arrays)
    if kind == "reduce-scatter":
        return sum(arrays) * (devices - 1)
    rounds = 2 if kind == "all-reduce" else 1
    whole = sum(arrays) if kind == "all-reduce" else max(arrays)
    return rounds * whole * (devices - 1) / devices


def _bytes(bits: str, sides: str) -> float:
    numbers = math.prod(int(side) for side in sides.split(",") if side)
    return numbers * (int(bits) if bits else _PRED_BITS) / 8
