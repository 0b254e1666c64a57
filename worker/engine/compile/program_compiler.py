"""Compile the programs of a shape before the first job arrives.

Input: the diffusion programs, the placed weights, and the arrays that a batch has. Output:
executables, from the executable cache or newly compiled. It runs nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, Protocol

import jax
from jax.sharding import NamedSharding

from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.sampling.arrays import Conditions, SamplerState, Weights
from imagefleet.worker.engine.sampling.empty_batch import EmptyBatch
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms

Lower = Callable[[], jax.stages.Lowered]
ArrayOrShape = jax.Array | jax.ShapeDtypeStruct

_LARGE_PRODUCTS: Final[Mapping[str, dict[str, bool | str]]] = {
    kind: {"xla_tpu_scoped_vmem_limit_kib": "65536"} for kind in ("TPU v6 lite", "TPU v6e")
}
"""By kind of device: the compiler options of steps that are mostly products with large matrices. So
much of the core's memory may XLA use for one product, and half of it otherwise. docs/log/tpu.md has
the estimates."""


@dataclass(frozen=True)
class ShapeExecutables:
    """It has the executables of one shape. `DiffusionPrograms` defines their arguments and
    results."""

    begin: Any
    step: Any
    unguided_step: Any
    """It does half the work of `step`, for batches in which no slot uses guidance. None means that
    the model has no guidance, so that `step` runs in its place."""
    encode: Any
    preview: Any
    decode: Any
    encode_text: Any = None
    """It is the `TextEncoding` of the model, for one text on each copy of the weights. None means
    that the model has none, or that the host encodes texts."""
    reference_step: Any = None
    """It is `step` for batches in which a slot has a reference image. None means that there are no
    such slots, or not of this shape."""
    unguided_reference_step: Any = None
    embed_control: Any = None
    """None means that the model has no ControlNets."""


class Steps(Protocol):
    """The executables of a shape that advance all slots. See `ShapeExecutables`."""

    @property
    def step(self) -> Any: ...

    @property
    def unguided_step(self) -> Any: ...

    @property
    def reference_step(self) -> Any: ...

    @property
    def unguided_reference_step(self) -> Any: ...


def choose_step(executables: Steps, *, guidance: bool, reference: bool) -> Any:
    """Return the executable of the next step.

    Args:
        executables: Of the shape.
        guidance: Whether a slot uses guidance in it.
        reference: Whether a slot has an `image`, which may be a reference image.
    """
    if reference and executables.reference_step is not None:
        guided, unguided = executables.reference_step, executables.unguided_reference_step
    else:
        guided, unguided = executables.step, executables.unguided_step
    return guided if guidance or unguided is None else unguided


@dataclass(frozen=True)
class ProgramCompiler:
    """The compiler knows all that determines a program: networks, weights, inputs, devices."""

    programs: DiffusionPrograms
    weights: Weights
    empty_batch: EmptyBatch
    placement: Placement
    executable_cache: ExecutableCache

    def compile(self, shape: Shape, rgb_factors: jax.Array) -> ShapeExecutables:
        """Load all programs of a shape, or compile them. A cached program is not traced."""
        inputs = self.inputs(shape, rgb_factors)
        lowerings = self.lowerings(shape, rgb_factors)
        named = {f"{shape}/{name}": lower for name, lower in lowerings.items()}
        executables = self.executable_cache.load_or_compile_all(named, inputs)
        by_name = dict(zip(lowerings, executables, strict=True))
        return ShapeExecutables(**{"unguided_step": None, **by_name})

    def compile_ahead(self, shape: Shape, rgb_factors: ArrayOrShape) -> Iterator[tuple[str, bool]]:
        """Put the executables of a shape into the stores, and yield each program after that.

        The weights and `rgb_factors` may be abstract, and the devices may be absent.

        Yields:
            The name of a program, and whether it was compiled. Otherwise a store had it.
        """
        inputs = self.inputs(shape, rgb_factors)
        for name, lower in self.lowerings(shape, rgb_factors).items():
            program = f"{shape}/{name}"
            yield program, self.executable_cache.compile_ahead(program, inputs, lower)

    def lowerings(self, shape: Shape, rgb_factors: ArrayOrShape) -> dict[str, Lower]:
        """Return for each program of a shape the function that traces and lowers it.

        The weights and `rgb_factors` may be abstract, and the devices may be absent.
        """
        programs, weights, by_slot = self.programs, self.weights, self.placement.by_slot
        _, inputs, init_latents, init_images, _ = self.inputs(shape, rgb_factors)
        begin_outputs = cache(partial(self.begin_outputs, shape))
        in_turn = partial(one_image_at_a_time, copies=self.placement.data)

        def lowering(
            function: Callable[..., Any], arguments: Callable[[], Any], **options: Any
        ) -> Lower:
            def lower() -> jax.stages.Lowered:
                jitted = jax.jit(function, out_shardings=by_slot, **options)
                with jax.set_mesh(self.placement.mesh):  # `attention` reads the current mesh
                    return jitted.lower(*arguments())

            return lower

        def step(*, guidance: bool, reference: bool = False) -> Lower:
            return lowering(
                partial(programs.step, guidance=guidance, reference=reference),
                lambda: (weights.denoiser, *begin_outputs()),
                donate_argnums=2,
                compiler_options=self._step_options(),
            )

        return {
            "begin": lowering(programs.begin, lambda: (weights, inputs, init_latents)),
            **steps(programs, step),
            "encode": lowering(in_turn(programs.encode), lambda: (weights, init_images)),
            "preview": lowering(programs.preview, lambda: (begin_outputs()[1], rgb_factors)),
            "decode": lowering(in_turn(programs.decode), lambda: (weights, begin_outputs()[1])),
            **self._text_lowering(lowering),
            **self._control_lowering(
                shape,
                lambda images: lowering(in_turn(programs.embed_control), lambda: (weights, images)),
            ),
            **reference_steps(programs, shape, step),
        }

    def _step_options(self) -> dict[str, bool | str]:
        if not self.programs.denoiser.has_large_products:
            return {}
        return _LARGE_PRODUCTS.get(self.placement.device_kind, {})

    def _text_lowering(self, lowering: Callable[..., Lower]) -> dict[str, Lower]:
        encoding = self.programs.denoiser.text_encoding
        if encoding is None or not self.weights.text[0]:
            return {}
        texts = self.empty_batch.texts(self.placement.data)
        placed = _abstract_arrays(texts, self.placement.by_slot)
        return {"encode_text": lowering(encoding, lambda: (self.weights, placed))}

    def _control_lowering(self, shape: Shape, lowering: Callable[[Any], Lower]) -> dict[str, Lower]:
        if self.programs.control is None:
            return {}
        images = self.empty_batch.control_images(shape)
        return {"embed_control": lowering(_abstract_arrays(images, self.placement.by_slot))}

    def begin_outputs(self, shape: Shape) -> tuple[Conditions, SamplerState]:
        """Return what `begin` makes, as abstract arrays."""
        by_slot, empty = self.placement.by_slot, self.empty_batch
        arguments = (self.weights, empty.inputs(), empty.init_latents(shape))
        outputs = jax.eval_shape(self.programs.begin, *arguments)
        placed: tuple[Conditions, SamplerState] = _abstract_arrays(outputs, by_slot)
        return placed

    def inputs(self, shape: Shape, rgb_factors: ArrayOrShape) -> tuple[Any, ...]:
        """Return all arguments of the programs, those of a batch as abstract arrays."""
        empty, by_slot = self.empty_batch, self.placement.by_slot
        return (
            self.weights,
            _abstract_arrays(empty.inputs(), by_slot),
            _abstract_arrays(empty.init_latents(shape), by_slot),
            _abstract_arrays(empty.init_images(shape), by_slot),
            rgb_factors,
        )


def steps(programs: DiffusionPrograms, step: Callable[..., Lower]) -> dict[str, Lower]:
    """Return the step with guidance, and the one without if it is another."""
    guided = {"step": step(guidance=True)}
    if not programs.denoiser.has_guidance:
        return guided
    return {**guided, "unguided_step": step(guidance=False)}


def reference_steps(
    programs: DiffusionPrograms, shape: Shape, step: Callable[..., Lower]
) -> dict[str, Lower]:
    """Return the steps of batches of a shape in which a slot has a reference image."""
    if not programs.takes_reference(shape.height, shape.width):
        return {}
    of_references = steps(programs, partial(step, reference=True))
    return {name.replace("step", "reference_step"): lower for name, lower in of_references.items()}


def one_image_at_a_time(program: Callable[..., Any], copies: int) -> Callable[..., Any]:
    """Return a program with the same results that runs once for each image of a device.

    The maps of the autoencoder are the largest arrays of all programs. Several images at once would
    not make it faster.

    Args:
        program: A function of weights and of a tree of arrays `[b, …]`.
        copies: Copies of the weights. Each has equally many neighbouring slots.
    """

    def split(x: jax.Array) -> jax.Array:
        return x.reshape(copies, -1, *x.shape[1:]).swapaxes(0, 1)

    def join(x: jax.Array) -> jax.Array:
        return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])

    def run(weights: Weights, slots: Any) -> Any:
        if len(jax.tree.leaves(slots)[0]) == copies:
            return program(weights, slots)
        outputs = jax.lax.map(partial(program, weights), jax.tree.map(split, slots))
        return jax.tree.map(join, outputs)

    return run


def _abstract_arrays(tree: Any, sharding: NamedSharding) -> Any:
    """Replace every array of a tree by its shape, dtype and sharding."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            x.shape, x.dtype, sharding=sharding
        ),
        tree,
    )
