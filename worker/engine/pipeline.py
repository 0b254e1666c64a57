"""The engine: batches of prompts through compiled programs on a mesh of devices.

Goes in: `ImageSpec`s. Comes out: pictures. Knows nothing of jobs, and nothing of how a checkpoint
is found and read: it gets a sampler and weights.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from worker.engine.base import ImageSpec, ModelInfo, Original, Rendering, Shape
from worker.engine.batch import Batch, Loop, Programs, device_errors
from worker.engine.compilation import CompileCounter
from worker.engine.mesh import Placement
from worker.engine.preview import colour_card, fit_colours
from worker.engine.requests import RequestMaker
from worker.engine.sampling import Given, Request, Sampler, Weights
from worker.engine.schedulers.noise import NoiseSchedule
from worker.engine.tokenizer import PromptTokenizer

log = logging.getLogger(__name__)


class DiffusionEngine:
    """See `worker.engine.base.Engine`."""

    def __init__(
        self,
        *,
        info: ModelInfo,
        sampler: Sampler,
        weights: Weights,
        tokenizer: PromptTokenizer,
        noise: NoiseSchedule,
        placement: Placement,
        per_device_batch: int,
    ) -> None:
        self.info = info
        self.capacity = placement.data * per_device_batch
        self._sampler = sampler
        self._weights = weights
        self._tokenizer = tokenizer
        self._requests = RequestMaker(self.capacity, info, sampler, tokenizer, noise)
        self._placement = placement
        self._programs: Mapping[Shape, Programs] = {}
        self._nothing: Mapping[Shape, Given] = {}
        """What is given in a batch without originals, by shape; on the devices."""
        self._colours = placement.copy(np.zeros((sampler.latent_channels + 1, 3), np.float32))
        self._compiled = CompileCounter()
        self._compiled_before_ready = 0

    def warm(self) -> None:
        """Compile every declared shape and run it once."""
        started = time.monotonic()
        self._programs = {shape: self._compile(shape) for shape in self.info.shapes}
        self._nothing = {
            shape: self._placement.split(self._requests.nothing_given(shape))
            for shape in self._programs
        }
        for shape in self.info.shapes:
            self._run_each_program(shape)
        self._compiled_before_ready = int(self._compiled)
        log.info("compiled %d shapes in %.1f s", len(self._programs), time.monotonic() - started)

    def render(self, specs: Sequence[ImageSpec], shape: Shape) -> Rendering:
        """Start a batch.

        Raises:
            ValueError: no specs, too many, an undeclared shape or scheduler, too many steps.
            DeviceError: the accelerator failed.
        """
        if shape not in self._programs:
            declared = ", ".join(map(str, self._programs)) or "none: the engine is not warm"
            raise ValueError(f"shape {shape} is not declared (there are: {declared})")
        if not 1 <= len(specs) <= self.capacity:
            raise ValueError(f"{len(specs)} pictures; a batch takes 1 to {self.capacity}")
        request = self._requests.of(specs)
        originals = self._requests.originals(specs, shape)
        programs, given = self._programs[shape], self._nothing[shape]
        with device_errors():
            if originals is not None:
                given = programs.encode(self._weights, self._placement.split(originals))
            return Batch(
                programs,
                self._weights,
                self._placement.split(request),
                given,
                specs=specs,
                calls=[int(count) for count in request.calls[: len(specs)]],
                colours=self._colours,
            )

    def truncated(self, prompt: str) -> bool:
        """Whether the tokenizer cuts this prompt."""
        return self._tokenizer.truncated(prompt)

    @property
    def recompiles(self) -> int:
        """Programs compiled since `warm` returned."""
        return int(self._compiled) - self._compiled_before_ready

    def _run_each_program(self, shape: Shape) -> None:
        """Once, so that no job waits for a first run. The autoencoder shows its colours by it."""
        card = colour_card(shape)
        original = Original(pixels=card, strength=1.0, digest="")
        guided = ImageSpec(prompt="", num_inference_steps=1, guidance_scale=2.0, original=original)
        given = self._programs[shape].encode(
            self._weights, self._placement.split(self._requests.originals([guided], shape))
        )
        self._colours = self._placement.copy(fit_colours(card, np.asarray(given.latents)[0]))
        for spec in (guided, replace(guided, guidance_scale=1.0)):
            rendering = self.render([spec], shape)
            rendering.previews()()
            rendering.pictures()

    def _compile(self, shape: Shape) -> Programs:
        by_slot, everywhere = self._placement.by_slot, self._placement.everywhere
        begin = jax.jit(self._sampler.begin, out_shardings=by_slot)
        step = jax.jit(self._sampler.step, out_shardings=by_slot, donate_argnums=2)
        encode = jax.jit(self._sampler.encode, out_shardings=by_slot)
        preview = jax.jit(self._sampler.preview, out_shardings=by_slot)
        decode = jax.jit(self._sampler.decode, out_shardings=by_slot)
        originals = _abstract(self._requests.blank_originals(shape), by_slot)
        given = _abstract(self._requests.nothing_given(shape), by_slot)
        colours = _abstract(self._colours, everywhere)

        def loop(request: Request) -> tuple[Loop, Any]:
            request = _abstract(request, by_slot)
            made = jax.eval_shape(begin, self._weights, request, given)
            conditions, state = _abstract(made, by_slot)
            compiled = Loop(
                begin=begin.lower(self._weights, request, given).compile(),
                step=step.lower(self._weights, conditions, state).compile(),
            )
            return compiled, state

        guided, state = loop(self._requests.blank())
        unguided, _ = loop(self._requests.blank(guided=False))
        return Programs(
            guided=guided,
            unguided=unguided,
            encode=encode.lower(self._weights, originals).compile(),
            preview=preview.lower(state, colours).compile(),
            decode=decode.lower(self._weights, state).compile(),
        )


def _abstract(tree: Any, sharding: NamedSharding) -> Any:
    """Shapes, dtypes and places of arrays, without the arrays."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            x.shape, x.dtype, sharding=sharding
        ),
        tree,
    )
