"""The programs of a shape, made before any job arrives.

Goes in: a sampler, where its weights lie, the arrays that a batch has. Comes out: executables, off
the shelf or compiled. Runs nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
from jax.sharding import NamedSharding

from imagefleet.worker.engine.batch import Programs
from imagefleet.worker.engine.batch_inputs import BatchInputBuilder
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.interface import Shape
from imagefleet.worker.engine.mesh import Placement
from imagefleet.worker.engine.sampling import Conditions, DiffusionPrograms, SamplerState, Weights


@dataclass(frozen=True)
class ProgramMaker:
    """Knows what decides a program: the networks, the weights' types and places, the batch."""

    sampler: DiffusionPrograms
    weights: Weights
    requests: BatchInputBuilder
    placement: Placement
    shelf: ExecutableCache

    def of(self, shape: Shape, colours: jax.Array) -> Programs:
        """All of a shape. Nothing is traced if the shelf has them."""
        sampler, weights, by_slot = self.sampler, self.weights, self.placement.by_slot
        given = _abstract(self.requests.nothing_given(shape), by_slot)
        originals = _abstract(self.requests.blank_originals(shape), by_slot)
        request = _abstract(self.requests.blank(), by_slot)
        inputs = (weights, request, given, originals, colours)

        @cache
        def begun() -> tuple[Conditions, SamplerState]:
            made = jax.eval_shape(sampler.begin, weights, request, given)
            placed: tuple[Conditions, SamplerState] = _abstract(made, by_slot)
            return placed

        def program(
            name: str, function: Callable[..., Any], arguments: Callable[[], Any], **options: Any
        ) -> Any:
            def lower() -> jax.stages.Lowered:
                jitted = jax.jit(function, out_shardings=by_slot, **options)
                with jax.set_mesh(self.placement.mesh):  # attention asks for it
                    return jitted.lower(*arguments())

            return self.shelf.executable(f"{shape}/{name}", inputs, lower)

        def step(name: str, *, guidance: bool) -> Any:
            function = partial(sampler.step, guidance=guidance)
            return program(name, function, lambda: (weights.unet, *begun()), donate_argnums=2)

        return Programs(
            begin=program("begin", sampler.begin, lambda: (weights, request, given)),
            step=step("step", guidance=True),
            unguided_step=step("unguided-step", guidance=False),
            encode=program("encode", sampler.encode, lambda: (weights, originals)),
            preview=program("preview", sampler.preview, lambda: (begun()[1], colours)),
            decode=program("decode", sampler.decode, lambda: (weights, begun()[1])),
        )


def _abstract(tree: Any, sharding: NamedSharding) -> Any:
    """Shapes, dtypes and places of arrays, without the arrays."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            x.shape, x.dtype, sharding=sharding
        ),
        tree,
    )
