"""Generate images on a mesh of devices.

Input: `ImageSpec`s. Output: images. This module reads no checkpoint: it is given programs and
weights.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np

from imagefleet.shared.errors import DeviceError
from imagefleet.shared.jobs.prompt_weights import pieces_of
from imagefleet.shared.text.printable import counted
from imagefleet.worker.engine.compile.executable_cache import DeviceCopy, ExecutableCache
from imagefleet.worker.engine.compile.jax_compilation_cache import CompileCounter
from imagefleet.worker.engine.compile.program_compiler import ProgramCompiler, ShapeExecutables
from imagefleet.worker.engine.compile.stream_compiler import StreamCompiler, StreamExecutables
from imagefleet.worker.engine.contract.device_memory import DeviceMemory
from imagefleet.worker.engine.contract.interface import ImageSpec, ModelInfo, Shape
from imagefleet.worker.engine.contract.text_cache_use import TextCacheUse
from imagefleet.worker.engine.placement import memory_check
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.runtime.batch_inputs import BatchInputBuilder
from imagefleet.worker.engine.runtime.device_batch import (
    DeviceBatch,
    device_errors,
)
from imagefleet.worker.engine.runtime.device_stream import DeviceStream
from imagefleet.worker.engine.runtime.text_cache import TextCache, encode_texts
from imagefleet.worker.engine.runtime.trial_images import (
    DENOISING_PARTS,
    colour_spec,
    require_finite,
)
from imagefleet.worker.engine.sampling.arrays import InitLatents, Weights
from imagefleet.worker.engine.sampling.empty_batch import EmptyBatch
from imagefleet.worker.engine.sampling.latent_preview import fit_rgb_factors
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.engine.sampling.step_tables import StepTables
from imagefleet.worker.engine.schedulers.registry import Schedule
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer

log = logging.getLogger(__name__)


class DiffusionEngine:
    """The diffusion engine runs a model on JAX devices. See `contract.interface.Engine`."""

    def __init__(
        self,
        *,
        info: ModelInfo,
        programs: DiffusionPrograms,
        weights: Weights,
        tokenizer: PromptTokenizer,
        noise_schedule: Callable[[Shape], Schedule],
        placement: Placement,
        per_device_batch: int,
        executable_cache: ExecutableCache,
        text_cache_bytes: int = 0,
    ) -> None:
        self.info = info
        self.capacity = placement.data * per_device_batch
        self.devices = f"{placement.mesh.size} x {placement.device_kind}"
        self.uses_host_memory = placement.platform == "cpu"
        self._weights = weights
        self._tokenizer = tokenizer
        self._empty_batch = EmptyBatch.of(
            programs,
            self.capacity,
            tokenizer.lengths,
            info.max_num_inference_steps,
            loras=len(info.job_loras),
            prompt_chunks=info.prompt_chunks,
        )
        self._tables = StepTables(info, noise_schedule)
        self._input_builder = BatchInputBuilder(self._empty_batch, info, tokenizer, self._tables)
        self._one_image = replace(self._input_builder, empty=replace(self._empty_batch, slots=1))
        self._programs = programs
        self._per_device_batch = per_device_batch
        self._placement = placement
        self._executable_cache = executable_cache
        self._texts = TextCache(text_cache_bytes)
        self._compiler = ProgramCompiler(
            programs, weights, self._empty_batch, placement, executable_cache
        )
        self._executables: Mapping[Shape, ShapeExecutables] = {}
        self._empty_init_latents: Mapping[Shape, InitLatents] = {}
        """It has the init latents of a batch without init images, by shape; they are on the
        devices."""
        self._rgb_factors = placement.replicate(
            np.zeros((programs.latent_channels + 1, 3), np.float32)
        )
        self._compiled = CompileCounter()
        self._compiled_before_ready = 0

    def warm(self) -> None:
        """Compile the programs of every declared shape and run each once.

        Raises:
            TooLittleMemory: the devices have too little memory.
            CheckpointError: the networks make NaN or infinity of ordinary inputs.
        """
        with memory_check.memory_errors():
            self._warm()

    def _warm(self) -> None:
        started = time.monotonic()
        self._executables = {
            shape: self._compiler.compile(shape, self._rgb_factors) for shape in self.info.shapes
        }
        self._empty_init_latents = {
            shape: self._placement.split(self._empty_batch.init_latents(shape))
            for shape in self._executables
        }
        for shape in self.info.shapes:
            with self._executable_cache.start_log.stage(f"running each program of {shape} once"):
                self._run_each_program(shape)
        self._compiled_before_ready = int(self._compiled)
        log.info(
            "the engine is warm after %.1f s: %s, %s compiled, %d loaded",
            time.monotonic() - started,
            counted(len(self._executables), "shape"),
            counted(self._executable_cache.compiled, "program"),
            self._executable_cache.reloaded,
        )

    def open_streams(self) -> list[DeviceStream]:
        """Compile the programs of every declared shape for one stream on each copy of the weights.

        Raises:
            TooLittleMemory: the devices have too little memory.
            CheckpointError: the networks make NaN or infinity of ordinary inputs.
        """
        with memory_check.memory_errors():
            started = time.monotonic()
            streams = [self._open_stream(copy) for copy in self._placement.copies()]
            self._compiled_before_ready = int(self._compiled)
            log.info(
                "streams are warm after %.1f s: %s, %s, %s compiled, %d loaded",
                time.monotonic() - started,
                counted(len(streams), "stream"),
                counted(len(self.info.shapes), "shape"),
                counted(self._executable_cache.compiled, "program"),
                self._executable_cache.reloaded,
            )
        return streams

    def _open_stream(self, copy: Placement) -> DeviceStream:
        weights: Weights = jax.tree.map(copy.take_weight, self._weights)
        factors = copy.replicate(np.asarray(self._rgb_factors))
        compiler = StreamCompiler(
            self._programs,
            weights,
            self._one_image.empty,
            replace(self._empty_batch, slots=self._per_device_batch),
            copy,
            DeviceCopy(devices=copy.device_list, first=self._placement.copies()[0].device_list),
            self._executable_cache,
        )
        executables = {shape: compiler.compile(shape, factors) for shape in self.info.shapes}
        stream = DeviceStream(
            executables,
            weights,
            copy,
            self._one_image,
            self._per_device_batch,
            factors,
            TextCache(0),  # so that its text encoder runs too
        )
        start_log = self._executable_cache.start_log
        for shape in self.info.shapes:
            with start_log.stage(f"running each program of {shape} once for a stream"):
                self._run_stream_programs(stream, executables[shape], weights, copy, shape)
        stream.texts = self._texts
        return stream

    def _run_stream_programs(
        self,
        stream: DeviceStream,
        executables: StreamExecutables,
        weights: Weights,
        copy: Placement,
        shape: Shape,
    ) -> None:
        """Run each program once, so that no job waits for a first run, and fit the RGB factors."""
        chart, guided = colour_spec(shape, self.info.default_scheduler)
        init_images = copy.split(self._one_image.init_images([guided], shape))
        latents = np.asarray(executables.encode(weights, init_images)[0])[0]
        require_finite(bool(np.isfinite(latents).all()), "the autoencoder's encoder", shape)
        stream.rgb_factors = copy.replicate(fit_rgb_factors(chart, latents))
        for spec in self._trial_specs(guided, shape):
            stream.start(0, spec, shape)
            while not stream.step():
                pass
            stream.previews()()
            finished = stream.finish(0)
            try:
                finished()
            except DeviceError:
                require_finite(False, DENOISING_PARTS, shape)

    def start_batch(self, specs: Sequence[ImageSpec], shape: Shape) -> DeviceBatch:
        """Start a batch.

        Raises:
            ValueError: no specs, too many specs, too many steps, an undeclared shape or scheduler,
                or an init image or latents of another shape.
            InvalidRequest: `denoising_start` or `denoising_end` leaves no step.
            DeviceError: the devices failed.
        """
        if shape not in self._executables:
            declared = ", ".join(map(str, self._executables)) or "none: the engine is not warm"
            raise ValueError(f"shape {shape} is not declared (declared: {declared})")
        if not 1 <= len(specs) <= self.capacity:
            raise ValueError(f"{len(specs)} images; a batch takes 1 to {self.capacity}")
        inputs = self._input_builder.inputs(specs, shape)
        init_images = self._input_builder.init_images(specs, shape)
        executables, init_latents = self._executables[shape], self._empty_init_latents[shape]
        with device_errors():
            inputs = encode_texts(
                self._texts,
                inputs,
                shape,
                executables.encode_text,
                self._weights,
                self._placement,
            )
            if init_images is not None:
                split_images = self._placement.split(init_images)
                init_latents = InitLatents(*executables.encode(self._weights, split_images))
            init_latents = self._input_builder.with_input_latents(
                specs, init_latents, self._placement.split
            )
            return DeviceBatch(
                executables,
                self._weights,
                self._placement.split(inputs),
                init_latents,
                specs=specs,
                guided_calls=[self._input_builder.guided_calls(spec, shape) for spec in specs],
                calls=[int(count) for count in inputs.calls[: len(specs)]],
                output_scales=[self._tables.of(spec, shape).output_scale for spec in specs],
                rgb_factors=self._rgb_factors,
            )

    def truncated(self, spec: ImageSpec) -> bool:
        """Return whether the tokenizers cut the prompt."""
        weighting = spec.prompt_weighting
        pieces = pieces_of(spec.prompt, weighting=weighting)
        return self._tokenizer.truncated(pieces, self.info.prompt_chunks if weighting else 1)

    @property
    def recompiles(self) -> int:
        """Return the number of programs compiled since `warm` returned."""
        return int(self._compiled) - self._compiled_before_ready

    @property
    def text_cache(self) -> TextCacheUse:
        """Return how much the kept texts are used."""
        return self._texts.use

    def memory(self) -> list[DeviceMemory]:
        """Return the memory of each device; empty on CPU, whose runtime does not report it."""
        reports = [device.memory_stats() for device in self._placement.mesh.devices.flat]
        return [
            DeviceMemory(used=report["bytes_in_use"], limit=report["bytes_limit"])
            for report in reports
            if report and "bytes_limit" in report
        ]

    def _trial_specs(self, guided: ImageSpec, shape: Shape) -> list[ImageSpec]:
        """Return images that run each program of a step, from one that runs the guided one."""
        specs = [guided]
        if self._programs.denoiser.has_guidance:
            specs.append(replace(guided, guidance_scale=self.info.unguided_scale))
        if self._programs.takes_reference(shape.height, shape.width):
            specs += [replace(spec, init_image=None) for spec in specs]
        return specs

    def _run_each_program(self, shape: Shape) -> None:
        """Run each program once, so that no job waits for a first run, and fit the RGB factors."""
        chart, guided = colour_spec(shape, self.info.default_scheduler)
        init_latents = self._executables[shape].encode(
            self._weights, self._placement.split(self._input_builder.init_images([guided], shape))
        )
        latents = np.asarray(init_latents.latents)[0]
        require_finite(bool(np.isfinite(latents).all()), "the autoencoder's encoder", shape)
        factors = fit_rgb_factors(chart, latents)
        self._rgb_factors = self._placement.replicate(factors)
        for spec in self._trial_specs(guided, shape):
            running_batch = self.start_batch([spec], shape)
            running_batch.previews()()
            require_finite(not running_batch.not_finite(), DENOISING_PARTS, shape)
            running_batch.images()
