"""Read from a compiled TPU program what its compiler says of its memory and time.

Input: an executable for devices that need not be there. Output: bytes, FLOPs and cycles. It runs
nothing.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from imagefleet.worker.engine.placement.tpu_hosts import TpuGeneration
from tools.tpu.exchanges import Exchanges, read_exchanges
from tools.tpu.kernel_cycles import kernel_cycles
from tools.tpu.products import ProductCycles, product_cycles

_ENTRY: Final = "ENTRY"
_COMPUTATION: Final = re.compile(r"^(ENTRY )?%?([\w.<>-]+) \(.*\{$")
_CYCLES: Final = re.compile(r'"estimated_cycles":"(\d+)"')
_LOOP: Final = re.compile(r" while\(.*condition=%?([\w.<>-]+), body=%?([\w.<>-]+)")
_BRANCHES: Final = re.compile(
    r" conditional\(.*(?:branch_computations=\{(.*?)\}"
    r"|true_computation=(\S+), false_computation=([^\s,]+))"
)
_NAME: Final = re.compile(r"%([\w.<>-]+)")
_LIMIT: Final = re.compile(r" s32\[\]\S* constant\((\d+)\)")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The compiler's account of one program, for one device."""

    argument_bytes: int
    temporary_bytes: int
    """With the program's code and those results that do not take the place of arguments."""
    code_bytes: int
    """These of the temporary bytes are the program's code."""
    flops: float
    cycles: float
    """The compiler's estimate, without kernels. Of each condition the longer branch runs."""
    kernel_cycles: float
    """It follows from the schedules of the kernels."""
    shorter_cycles: float
    """They are the cycles, and those of the kernels, if the shorter branches run."""
    product_cycles: float
    """These of `cycles` are those of instructions with large products."""
    product_floor: float
    """The matrix unit takes these for the products alone."""
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

    def share_at_floor(self, generation: TpuGeneration) -> float:
        """Return the share as if products took no more than the matrix unit needs for them."""
        cycles = self.cycles + self.kernel_cycles - self.product_cycles + self.product_floor
        return self.flops / (generation.flops_per_cycle * cycles)

    def with_blocks(self, more: Sequence[tuple["Estimate", int]]) -> "Estimate":
        """Return the estimate of a program with more blocks than this one.

        Args:
            more: Programs that have one block more, each of another kind, and how many of its kind
                are added. Temporaries do not grow with them, but code and all other numbers do.
        """
        grown = {
            each.name: round(
                start + sum(count * (getattr(one, each.name) - start) for one, count in more)
            )
            for each in fields(self)
            for start in [getattr(self, each.name)]
        }
        programs = [self, *(one for one, _ in more)]
        temporaries = max(each.temporary_bytes - each.code_bytes for each in programs)
        return Estimate(**grown | {"temporary_bytes": temporaries + grown["code_bytes"]})


Computations = Mapping[str, Sequence[str]]
Pick = Callable[..., str]
"""It is `max` if the longer branch of each condition runs, `min` if the shorter one does."""


def read_estimate(compiled: Any, generation: TpuGeneration, devices_per_copy: int = 1) -> Estimate:
    """Read the account of a `jax.stages.Compiled`, whose weights so many devices share."""
    memory, costs, text = compiled.memory_analysis(), compiled.cost_analysis(), compiled.as_text()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    kernels = list(all_kernel_cycles(text, generation))
    exchanges = program_exchanges(text, devices_per_copy)
    products = program_products(text, generation)
    shorter = filter(None, all_kernel_cycles(text, generation, min))
    return Estimate(
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes + memory.generated_code_size_in_bytes + results,
        code_bytes=memory.generated_code_size_in_bytes,
        flops=float(costs.get("flops", 0.0)),
        cycles=program_cycles(text),
        kernel_cycles=sum(filter(None, kernels)),
        shorter_cycles=program_cycles(text, min) + sum(shorter),
        product_cycles=products.estimated,
        product_floor=products.floor,
        uncounted_kernels=kernels.count(None),
        collectives=exchanges.count,
        awaited_bytes=exchanges.awaited_bytes,
        hidden_bytes=exchanges.hidden_bytes,
    )


def program_cycles(text: str, pick: Pick = max) -> float:
    """Sum the cycles of all instructions of a scheduled program, those in loops once a trip."""
    computations = _computations(text)
    return _cycles(computations, _trips(computations, pick))


def all_kernel_cycles(
    text: str, generation: TpuGeneration, pick: Pick = max
) -> Iterator[float | None]:
    """Yield the cycles of each kernel of a scheduled program, for all trips of its loop.

    None stands for a kernel that `kernel_cycles` cannot count.
    """
    computations = _computations(text)
    trips = _trips(computations, pick)
    for name, lines in _reached(computations, pick).items():
        for cycles in kernel_cycles("\n".join(lines), generation):
            yield cycles if cycles is None else trips.get(name, 1) * cycles


def program_products(text: str, generation: TpuGeneration) -> ProductCycles:
    """Return the cycles of the large products, with the longer branches."""
    computations = _computations(text)
    return product_cycles(computations, _trips(computations, max), generation)


def program_exchanges(text: str, devices_per_copy: int) -> Exchanges:
    """Read what the devices that share weights exchange in one run, with the longer branches."""
    computations = _computations(text)
    return read_exchanges(_reached(computations, max), _trips(computations, max), devices_per_copy)


def _computations(text: str) -> dict[str, list[str]]:
    """Return the lines of each computation. The entry has the name ENTRY."""
    computations: dict[str, list[str]] = {_ENTRY: []}
    name = _ENTRY
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            name = _ENTRY if header[1] else header[2]
        computations.setdefault(name, []).append(line)
    return computations


def _cycles(computations: Computations, trips: Mapping[str, int]) -> float:
    return sum(
        count * float(cycles)
        for name, count in trips.items()
        for line in computations[name]
        for cycles in _CYCLES.findall(line)
    )


def _trips(computations: Computations, pick: Pick, root: str = _ENTRY) -> dict[str, int]:
    """Return how often a run of `root` runs it, the body of each loop, and each branch."""
    trips: dict[str, int] = {}

    def run(name: str, times: int) -> None:
        trips[name] = trips.get(name, 0) + times
        for line in computations[name]:
            if loop := _LOOP.search(line):
                # A loop made by `lax.map` counts from 0 up to the constant in its condition.
                limits = _LIMIT.findall("\n".join(computations[loop[1]]))
                run(loop[2], times * max(map(int, limits), default=1))
            elif branches := _branches(line):
                run(_pick_branch(computations, pick, branches), times)

    run(root, 1)
    return trips


def _branches(line: str) -> list[str]:
    """Return the computations of which an instruction runs one."""
    found = _BRANCHES.search(line)
    return [] if found is None else _NAME.findall(" ".join(filter(None, found.groups())))


def _pick_branch(computations: Computations, pick: Pick, branches: Sequence[str]) -> str:
    """Return the branch of a condition that takes the most or the fewest cycles, by `pick`."""
    return pick(branches, key=lambda name: _cycles(computations, _trips(computations, pick, name)))


def _reached(computations: Computations, pick: Pick) -> dict[str, Sequence[str]]:
    """Return the computations without those that only another branch of a condition needs."""
    reached: dict[str, Sequence[str]] = {}

    def reach(name: str) -> None:
        if name in reached or name not in computations:
            return
        reached[name] = computations[name]
        for line in computations[name]:
            branches = _branches(line)
            taken = (
                [_pick_branch(computations, pick, branches)] if branches else _NAME.findall(line)
            )
            for each in taken:
                reach(each)

    reach(_ENTRY)
    return reached
