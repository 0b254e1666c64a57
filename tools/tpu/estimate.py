"""Read from a compiled TPU program what its compiler says of its memory and time.

Input: an executable for devices that need not be there. Output: bytes, FLOPs and cycles. It runs
nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from imagefleet.worker.engine.placement.tpu_hosts import TpuGeneration
from tools.tpu.exchanges import Exchanges, read_exchanges
from tools.tpu.kernel_cycles import kernel_cycles

_ENTRY: Final = "ENTRY"
_COMPUTATION: Final = re.compile(r"^(ENTRY )?%?([\w.<>-]+) \(.*\{$")
_CYCLES: Final = re.compile(r'"estimated_cycles":"(\d+)"')
_LOOP: Final = re.compile(r" while\(.*condition=%?([\w.<>-]+), body=%?([\w.<>-]+)")
_LIMIT: Final = re.compile(r" s32\[\]\S* constant\((\d+)\)")


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
    """It follows from the schedules of the kernels."""
    uncounted_kernels: int
    """It is the number of kernels whose cycles nobody has counted. The time does not have them."""
    collectives: int
    """The exchanges between devices. The cycles do not have them."""
    awaited_bytes: int
    """A device receives these while it computes nothing."""
    hidden_bytes: int
    """A device receives these while it computes."""

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


def read_estimate(compiled: Any, generation: TpuGeneration, devices_per_copy: int = 1) -> Estimate:
    """Read the account of a `jax.stages.Compiled`, whose weights so many devices share."""
    memory, costs, text = compiled.memory_analysis(), compiled.cost_analysis(), compiled.as_text()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    kernels = list(all_kernel_cycles(text, generation))
    exchanges = program_exchanges(text, devices_per_copy)
    return Estimate(
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes + memory.generated_code_size_in_bytes + results,
        flops=float(costs.get("flops", 0.0)),
        cycles=program_cycles(text),
        kernel_cycles=sum(filter(None, kernels)),
        uncounted_kernels=kernels.count(None),
        collectives=exchanges.count,
        awaited_bytes=exchanges.awaited_bytes,
        hidden_bytes=exchanges.hidden_bytes,
    )


def program_cycles(text: str) -> float:
    """Sum the cycles of all instructions of a scheduled program, those in loops once a trip."""
    computations = _computations(text)
    return sum(
        trips * float(cycles)
        for name, trips in _trips(computations).items()
        for line in computations[name]
        for cycles in _CYCLES.findall(line)
    )


def all_kernel_cycles(text: str, generation: TpuGeneration) -> Iterator[float | None]:
    """Yield the cycles of each kernel of a scheduled program, for all trips of its loop.

    None stands for a kernel that `kernel_cycles` cannot count.
    """
    computations = _computations(text)
    trips = _trips(computations)
    for name, lines in computations.items():
        for cycles in kernel_cycles("\n".join(lines), generation):
            yield cycles if cycles is None else trips.get(name, 1) * cycles


def program_exchanges(text: str, devices_per_copy: int) -> Exchanges:
    """Read what the devices that share weights exchange in one run."""
    computations = _computations(text)
    return read_exchanges(computations, _trips(computations), devices_per_copy)


def _computations(text: str) -> dict[str, list[str]]:
    """Return the lines of each computation. The entry has the name ENTRY."""
    computations: dict[str, list[str]] = {_ENTRY: []}
    name = ""
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            name = _ENTRY if header[1] else header[2]
        computations.setdefault(name, []).append(line)
    return computations


def _trips(computations: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return how often the program runs its entry and the body of each loop."""
    trips: dict[str, int] = {}

    def run(name: str, times: int) -> None:
        trips[name] = trips.get(name, 0) + times
        for line in computations[name]:
            if loop := _LOOP.search(line):
                # A loop made by `lax.map` counts from 0 up to the constant in its condition.
                limits = _LIMIT.findall("\n".join(computations[loop[1]]))
                run(loop[2], times * max(map(int, limits), default=1))

    run(_ENTRY, 1)
    return trips
