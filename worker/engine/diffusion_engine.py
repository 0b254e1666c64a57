"""The engine: batches of prompts through compiled programs on a mesh of devices.

Goes in: `ImageSpec`s. Comes out: pictures. Knows nothing of jobs, and nothing of how a checkpoint
is found and read: it gets a sampler and weights.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from imagefleet.worker.engine import memory_check
from imagefleet.worker.engine.batch import Batch, Programs, device_errors
from imagefleet.worker.engine.batch_inputs import BatchInputBuilder
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.compile.jax_cache import CompileCounter
from imagefleet.worker.engine.compile.programs import ProgramMaker
from imagefleet.worker.engine.interface import ImageSpec, InitImage, ModelInfo, Rendering, Shape
from imagefleet.worker.engine.latent_preview import colour_card, fit_colours
from imagefleet.worker.engine.mesh import Placement
from imagefleet.worker.engine.sampling import DiffusionPrograms, Given, Weights
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule
from imagefleet.worker.engine.tokenizer import PromptTokenizer

log = logging.getLogger(__name__)


class DiffusionEngine:
    """See `worker.engine.interface.Engine`."""

    def __init__(
        self,
        *,
        info: ModelInfo,
        sampler: DiffusionPrograms,
        weights: Weights,
        tokenizer: PromptTokenizer,
        noise: NoiseSchedule,
        placement: Placement,
        per_device_batch: int,
        shelf: ExecutableCache,
    ) -> None:
        self.info = info
        self.capacity = placement.data * per_device_batch
        self._sampler = sampler
        self._weights = weights
        self._tokenizer = tokenizer
        self._requests = BatchInputBuilder(self.capacity, info, sampler, tokenizer, noise)
        self._placement = placement
        self._shelf = shelf
        self._maker = ProgramMaker(sampler, weights, self._requests, placement, shelf)
        self._programs: Mapping[Shape, Programs] = {}
        self._nothing: Mapping[Shape, Given] = {}
        """What is given in a batch without originals, by shape; on the devices."""
        self._colours = placement.copy(np.zeros((sampler.latent_channels + 1, 3), np.float32))
        self._compiled = CompileCounter()
        self._compiled_before_ready = 0

    def warm(self) -> None:
        """Compile every declared shape and run it once.

        Raises:
            TooLittleMemory: the devices have no room for it.
        """
        with memory_check.said_clearly():
            self._warm()

    def _warm(self) -> None:
        started = time.monotonic()
        self._requests.make_every_table()
        self._programs = {shape: self._maker.of(shape, self._colours) for shape in self.info.shapes}
        self._nothing = {
            shape: self._placement.split(self._requests.nothing_given(shape))
            for shape in self._programs
        }
        for shape in self.info.shapes:
            self._run_each_program(shape)
        self._compiled_before_ready = int(self._compiled)
        log.info(
            "warm after %.1f s: shapes: %d, programs compiled: %d, reloaded: %d",
            time.monotonic() - started,
            len(self._programs),
            self._shelf.compiled,
            self._shelf.reloaded,
        )

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
        original = InitImage(pixels=card, strength=1.0, digest="")
        guided = ImageSpec(prompt="", num_inference_steps=1, guidance_scale=2.0, original=original)
        given = self._programs[shape].encode(
            self._weights, self._placement.split(self._requests.originals([guided], shape))
        )
        self._colours = self._placement.copy(fit_colours(card, np.asarray(given.latents)[0]))
        for spec in (guided, replace(guided, guidance_scale=1.0)):
            rendering = self.render([spec], shape)
            rendering.previews()()
            rendering.pictures()
