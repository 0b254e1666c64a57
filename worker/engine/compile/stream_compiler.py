"""Compile the programs of a stream: one image enters or leaves, all slots advance.

Input: the diffusion programs, and the weights on the devices of one stream. Output: the executables
of a shape. Streams of one mesh share them: the first compiles, the others load what it stored.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.compile.executable_cache import DeviceCopy, ExecutableCache
from imagefleet.worker.engine.compile.program_compiler import (
    ArrayOrShape,
    Lower,
    ProgramCompiler,
    reference_steps,
    steps,
)
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.sampling.arrays import Conditions, Decoded, SamplerState, Weights
from imagefleet.worker.engine.sampling.empty_batch import EmptyBatch
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms

Slots = tuple[Conditions, SamplerState]
Flat = tuple[jax.Array, ...]
_OF_ONE = ("encode_text", "embed_control")
"""Only some models have these programs of one image."""


@dataclass(frozen=True)
class StreamExecutables:
    """It has the executables of one shape on the devices of one stream."""

    begin: Any
    """It is `DiffusionPrograms.begin` for one image."""
    encode: Any
    """It is `DiffusionPrograms.encode` for one image."""
    insert: Any
    """It is `insert`."""
    step: Any
    """It is `DiffusionPrograms.step` for all slots; the denoiser's weights are the tuple of
    `flat`."""
    unguided_step: Any
    """It is `step` for slots of which none uses guidance. None: see `ShapeExecutables`."""
    preview: Any
    """It is `DiffusionPrograms.preview` for all slots."""
    decode: Any
    """It is `decode_slot`."""
    encode_text: Any = None
    reference_step: Any = None
    unguided_reference_step: Any = None
    embed_control: Any = None
    """The last four are those of `ShapeExecutables`."""


def flat(weights: Params) -> Flat:
    """Return the weights as a flat tuple. A call with a tree of 326 arrays takes the host twice
    as long, and each stream makes one call in each step."""
    return tuple(jax.tree.leaves(weights))


def insert(slots: Slots, newcomer: Slots, slot: jax.Array) -> Slots:
    """Put the conditions and the state of one image, leading axis 1, into a slot."""
    inserted: Slots = jax.tree.map(
        lambda all_slots, one: jax.lax.dynamic_update_index_in_dim(all_slots, one[0], slot, 0),
        slots,
        newcomer,
    )
    return inserted


def decode_slot(
    programs: DiffusionPrograms, weights: Weights, state: SamplerState, slot: jax.Array
) -> Decoded:
    """Decode the image of one slot. The results have the leading axis 1."""
    one = jax.tree.map(
        lambda each: jax.lax.dynamic_index_in_dim(each, slot, 0, keepdims=True), state
    )
    return programs.decode(weights, one)


@dataclass(frozen=True)
class StreamCompiler:
    """It compiles for one stream. `one` and `many` describe its inputs with one and all slots."""

    programs: DiffusionPrograms
    weights: Weights
    one: EmptyBatch
    many: EmptyBatch
    placement: Placement
    copy: DeviceCopy
    executable_cache: ExecutableCache

    def compile(self, shape: Shape, rgb_factors: jax.Array) -> StreamExecutables:
        """Load all programs of a shape, or compile them. A cached program is not traced."""
        inputs = self._compiler(self.one).inputs(shape, rgb_factors)
        lowerings = self.lowerings(shape, rgb_factors)
        named = {self._program(shape, name): lower for name, lower in lowerings.items()}
        executables = self.executable_cache.load_or_compile_all(named, inputs, copy=self.copy)
        by_name = dict(zip(lowerings, executables, strict=True))
        return StreamExecutables(**{"unguided_step": None, **by_name})

    def compile_ahead(self, shape: Shape, rgb_factors: ArrayOrShape) -> Iterator[tuple[str, bool]]:
        """Put the executables of a shape into the stores, as `ProgramCompiler.compile_ahead`."""
        inputs = self._compiler(self.one).inputs(shape, rgb_factors)
        for name, lower in self.lowerings(shape, rgb_factors).items():
            program = self._program(shape, name)
            yield program, self.executable_cache.compile_ahead(program, inputs, lower)

    def _program(self, shape: Shape, name: str) -> str:
        return f"{shape}/stream-of-{self.many.slots}/{name}"

    def lowerings(self, shape: Shape, rgb_factors: ArrayOrShape) -> dict[str, Lower]:
        """Return for each program of a shape the function that traces and lowers it.

        The weights and `rgb_factors` may be abstract, and the devices may be absent.
        """
        of_one, of_many = self._compiler(self.one), self._compiler(self.many)
        one, many = (each.lowerings(shape, rgb_factors) for each in (of_one, of_many))
        slots, newcomer = (cache(partial(each.begin_outputs, shape)) for each in (of_many, of_one))
        number = jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            (), jnp.int32, sharding=self.placement.replicated
        )
        decode = partial(decode_slot, self.programs)
        return {
            "begin": one["begin"],
            "encode": one["encode"],
            "insert": self._lowering(
                insert, lambda: (slots(), newcomer(), number), donate_argnums=0
            ),
            **steps(self.programs, partial(self._step, slots)),
            "preview": many["preview"],
            "decode": self._lowering(decode, lambda: (self.weights, slots()[1], number)),
            **{name: lower for name, lower in one.items() if name in _OF_ONE},
            **reference_steps(self.programs, shape, partial(self._step, slots)),
        }

    def _step(
        self, slots: Callable[[], Slots], *, guidance: bool, reference: bool = False
    ) -> Lower:
        tree = jax.tree.structure(self.weights.denoiser)

        def step(denoiser: Flat, conditions: Conditions, state: SamplerState) -> Any:
            weights = jax.tree.unflatten(tree, denoiser)
            return self.programs.step(
                weights, conditions, state, guidance=guidance, reference=reference
            )

        return self._lowering(
            step, lambda: (flat(self.weights.denoiser), *slots()), donate_argnums=2
        )

    def _compiler(self, empty: EmptyBatch) -> ProgramCompiler:
        return ProgramCompiler(
            self.programs, self.weights, empty, self.placement, self.executable_cache
        )

    def _lowering(
        self, function: Callable[..., Any], arguments: Callable[[], Any], **options: Any
    ) -> Lower:
        def lower() -> jax.stages.Lowered:
            jitted = jax.jit(function, out_shardings=self.placement.by_slot, **options)
            with jax.set_mesh(self.placement.mesh):  # `attention` reads the current mesh
                return jitted.lower(*arguments())

        return lower
