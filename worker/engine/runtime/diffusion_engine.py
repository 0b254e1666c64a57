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

from imagefleet.shared.jobs.prompt_weights import pieces_of
from imagefleet.shared.text.printable import counted
from imagefleet.worker.engine.compile.executable_cache import DeviceCopy, ExecutableCache
from imagefleet.worker.engine.compile.jax_compilation_cache import CompileCounter
from imagefleet.worker.engine.compile.program_compiler import (
    ProgramCompiler,
    ShapeExecutables,
    choose_step,
)
from imagefleet.worker.engine.compile.stream_compiler import StreamCompiler
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
    require_finite_chart,
    require_finite_latents,
    run_stream_programs,
    specs_of_other_steps,
)
from imagefleet.worker.engine.sampling.arrays import BatchInputs, InitLatents, Weights
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
        texts: TextCache,
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
        self._texts = texts
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
            self._texts.for_trial(),
        )
        start_log = self._executable_cache.start_log
        for shape in self.info.shapes:
            with start_log.stage(f"running each program of {shape} once for a stream"):
                run_stream_programs(stream, executables[shape], shape, self.info)
        stream.texts = self._texts
        return stream

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
        with device_errors():
            inputs = self._inputs(specs, shape, self._texts)
            return self._start(specs, shape, inputs, self._init_latents(specs, shape))

    def _inputs(self, specs: Sequence[ImageSpec], shape: Shape, texts: TextCache) -> BatchInputs:
        """Return the inputs of a batch on the host, with the hidden states of its texts."""
        return encode_texts(
            texts,
            self._input_builder.inputs(specs, shape),
            shape,
            self._executables[shape].encode_text,
            self._weights,
            self._placement,
        )

    def _init_latents(self, specs: Sequence[ImageSpec], shape: Shape) -> InitLatents:
        init_latents, builder = self._empty_init_latents[shape], self._input_builder
        executables, split = self._executables[shape], self._placement.split
        if (images := builder.init_images(specs, shape)) is not None:
            encoded = InitLatents(*executables.encode(self._weights, split(images)))
            init_latents = encoded._replace(control_map=init_latents.control_map)
        if (control := builder.control_images(specs, shape)) is not None:
            control_map = executables.embed_control(self._weights, split(control))
            init_latents = init_latents._replace(control_map=control_map)
        return builder.with_input_latents(specs, init_latents, split)

    def _start(
        self,
        specs: Sequence[ImageSpec],
        shape: Shape,
        inputs: BatchInputs,
        init_latents: InitLatents,
    ) -> DeviceBatch:
        tables = [self._tables.of(spec, shape) for spec in specs]
        return DeviceBatch(
            self._executables[shape],
            self._weights,
            self._placement.split(inputs),
            init_latents,
            specs=specs,
            guided_calls=[self._input_builder.guided_calls(spec, shape) for spec in specs],
            calls=[len(table.rows) for table in tables],
            output_scales=[table.output_scale for table in tables],
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

    def _run_each_program(self, shape: Shape) -> None:
        """Run each program once, so that no job waits for a first run, and fit the RGB factors."""
        chart, spec = colour_spec(shape, self.info)
        init_latents = self._init_latents([spec], shape)
        factors = fit_rgb_factors(chart, require_finite_chart(init_latents, shape))
        self._rgb_factors = self._placement.replicate(factors)
        inputs = self._inputs([spec], shape, self._texts.for_trial())
        batch = self._start([spec], shape, inputs, init_latents)
        batch.previews()()
        require_finite(not batch.not_finite(), DENOISING_PARTS, shape)
        batch.images()
        executables = self._executables[shape]
        for other in specs_of_other_steps(executables, spec, self.info):
            others = self._input_builder.inputs([other], shape)
            others = self._placement.split(others._replace(text_states=inputs.text_states))
            start = init_latents if other.init_image else self._init_latents([other], shape)
            conditions, state = executables.begin(self._weights, others, start)
            step = choose_step(
                executables,
                guidance=other.is_guided(self.info),
                reference=other.init_image is not None,
            )
            state, _ = step(self._weights.denoiser, conditions, state)
            require_finite_latents(state, shape)
