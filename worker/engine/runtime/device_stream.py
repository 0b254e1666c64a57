"""Run the slots of one stream with the executables of their shape.

Input: executables, weights and images one by one. Output: images one by one. The devices are those
of one copy of the weights. It uses no other stream.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import jax
import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import DeviceError
from imagefleet.worker.engine.compile.program_compiler import choose_step
from imagefleet.worker.engine.compile.stream_compiler import Slots, StreamExecutables, flat
from imagefleet.worker.engine.contract.interface import (
    FinishedImage,
    ImageArray,
    ImageArrays,
    ImageSpec,
    Shape,
)
from imagefleet.worker.engine.contract.unfinished_latents import require_finite
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.runtime.batch_inputs import BatchInputBuilder
from imagefleet.worker.engine.runtime.device_batch import device_errors
from imagefleet.worker.engine.runtime.text_cache import TextCache, encode_texts
from imagefleet.worker.engine.sampling.arrays import Decoded, InitLatents, SamplerState, Weights
from imagefleet.worker.engine.sampling.latent_preview import fit_rgb_factors
from imagefleet.worker.engine.schedulers.registry import steps_after

_MAX_STEPS_AHEAD: Final = 1
"""At most this many steps are dispatched to the devices beyond the last one known to be done. In a
batch there are two. With one, a cancelled slot is free sooner, and the host still has a whole step
for its own work."""


@dataclass
class _Running:
    """It is the image in one slot."""

    spec: ImageSpec
    calls: int
    """The image needs this many calls of the denoiser."""
    guided_calls: int
    """It is the number of the first calls that need guidance."""
    output_scale: float
    """It is the factor from the image's last samples to diffusers' latents."""
    dispatched: int = 0
    """This many calls were dispatched."""


class DeviceStream:
    """It runs the slots of one copy of the weights. See `contract.interface.Stream`."""

    def __init__(
        self,
        executables: Mapping[Shape, StreamExecutables],
        weights: Weights,
        placement: Placement,
        inputs: BatchInputBuilder,
        slots: int,
        rgb_factors: jax.Array,
        texts: TextCache,
    ) -> None:
        """
        Args:
            executables: By declared shape.
            weights: The model's, on the devices of this stream.
            placement: The devices of this stream.
            inputs: Builds the inputs of one image.
            slots: Images that the devices denoise together.
            rgb_factors: The linear map from latents to RGB for `previews`, `[c + 1, 3]`.
            texts: Keeps encoded texts. Streams may share it.
        """
        self._rgb_factors = rgb_factors
        self._executables = executables
        self._weights = weights
        self._denoiser = flat(weights.denoiser)
        self._placement = placement
        self._inputs = inputs
        self.texts = texts
        self._slots = slots
        self._numbers = [placement.replicate(np.int32(number)) for number in range(slots)]
        self._no_init_latents = {
            shape: placement.split(inputs.empty.init_latents(shape)) for shape in executables
        }
        self._arrays: dict[Shape, Slots] = {}
        """It has the conditions and the state of all slots, by shape. A free slot keeps what was in
        it."""
        self._running: dict[int, _Running] = {}
        self._shape: Shape | None = None
        self._ahead: deque[jax.Array] = deque()

    def start(self, slot: int, spec: ImageSpec, shape: Shape) -> None:
        if shape not in self._executables:
            raise ValueError(f"shape {shape} is not declared")
        if self._running and shape != self._shape:
            raise ValueError(f"the stream runs {self._shape}; shape {shape} has to wait")
        if slot in self._running or not 0 <= slot < self._slots:
            raise ValueError(f"slot {slot} is not a free one of {self._slots}")
        self.start_encoded(slot, spec, shape, self.init_latents(spec, shape))

    def init_latents(self, spec: ImageSpec, shape: Shape) -> InitLatents:
        """Return the latents from which an image starts, on the devices."""
        init_images = self._inputs.init_images([spec], shape)
        init_latents = self._no_init_latents[shape]
        with device_errors():
            if init_images is not None:
                placed = self._placement.split(init_images)
                encode = self._executables[shape].encode
                encoded = InitLatents(*encode(self._weights, placed))
                init_latents = encoded._replace(control_map=init_latents.control_map)
            control_images = self._inputs.control_images([spec], shape)
            if control_images is not None:
                embed = self._executables[shape].embed_control
                control_map = embed(self._weights, self._placement.split(control_images))
                init_latents = init_latents._replace(control_map=control_map)
            return self._inputs.with_input_latents([spec], init_latents, self._placement.split)

    def start_encoded(
        self, slot: int, spec: ImageSpec, shape: Shape, init_latents: InitLatents
    ) -> None:
        """Start an image in a free slot, from init latents that are on the devices."""
        executables = self._executables[shape]
        inputs = self._inputs.inputs([spec], shape)
        with device_errors():
            inputs = encode_texts(
                self.texts,
                inputs,
                shape,
                executables.encode_text,
                self._weights,
                self._placement,
            )
            newcomer = executables.begin(self._weights, self._placement.split(inputs), init_latents)
            slots = self._arrays.get(shape) or self._empty_slots(newcomer)
            self._arrays[shape] = executables.insert(slots, newcomer, self._numbers[slot])
        self._shape = shape
        scale = self._inputs.tables.of(spec, shape).output_scale
        guided_calls = self._inputs.guided_calls(spec, shape)
        self._running[slot] = _Running(spec, int(inputs.calls[0]), guided_calls, scale)

    def step(self) -> list[int]:
        assert self._shape is not None, "no slot is running"
        executables = self._executables[self._shape]
        running = self._running.values()
        program = choose_step(
            executables,
            guidance=any(each.dispatched < each.guided_calls for each in running),
            reference=any(each.spec.init_image for each in running),
        )
        conditions, state = self._arrays[self._shape]
        with device_errors():
            state, done = program(self._denoiser, conditions, state)
            self._arrays[self._shape] = (conditions, state)
            self._ahead.append(done)
            if len(self._ahead) > _MAX_STEPS_AHEAD:
                self._ahead.popleft().block_until_ready()
        for each in self._running.values():
            each.dispatched += 1
        return [slot for slot, each in self._running.items() if each.dispatched >= each.calls]

    @property
    def state(self) -> SamplerState:
        """Return the state of all slots after the last step that was dispatched."""
        assert self._shape is not None, "no slot was started"
        return self._arrays[self._shape][1]

    def steps_done(self, slot: int) -> int:
        """Return the steps done. Some schedulers call the denoiser more often."""
        running = self._running[slot]
        done = max(0, running.dispatched - len(self._ahead))
        return steps_after(done, running.spec.steps, running.calls)

    def finish(self, slot: int) -> Callable[[], FinishedImage]:
        assert self._shape is not None
        running = self._running.pop(slot)
        executables, (_, state) = self._executables[self._shape], self._arrays[self._shape]
        spec = running.spec
        if spec.denoising_end is not None:
            return _finish_latents(spec, state, slot, running.output_scale)
        with device_errors():
            decoded = Decoded(*executables.decode(self._weights, state, self._numbers[slot]))
            for array in decoded:
                array.copy_to_host_async()

        def wait() -> FinishedImage:
            with device_errors():
                images, finite, flagged = (np.asarray(array) for array in decoded)
            if not finite[0]:
                raise DeviceError(
                    f"the image of prompt {spec.prompt[:60]!r} contains NaN or infinity"
                )
            return FinishedImage(pixels=images[0], flagged=bool(flagged[0]))

        return wait

    def drop(self, slot: int) -> None:
        del self._running[slot]

    def previews(self) -> Callable[[], ImageArrays]:
        assert self._shape is not None
        executables, (_, state) = self._executables[self._shape], self._arrays[self._shape]
        with device_errors():
            small = executables.preview(state, self._rgb_factors)
            small.copy_to_host_async()

        def wait() -> ImageArrays:
            with device_errors():
                return np.asarray(small)

        return wait

    def fit_previews(self, chart: ImageArray, latents: NDArray[np.float32]) -> None:
        """Fit the RGB factors of the previews to a colour chart and its latents."""
        self._rgb_factors = self._placement.replicate(fit_rgb_factors(chart, latents))

    def reset(self) -> None:
        self._running.clear()
        self._ahead.clear()
        self._arrays.clear()

    def _empty_slots(self, newcomer: Slots) -> Slots:
        """Return arrays for all slots, like those of one image."""
        zeros = jax.tree.map(
            lambda one: np.zeros((self._slots, *one.shape[1:]), one.dtype), tuple(newcomer)
        )
        placed: Slots = self._placement.split(zeros)
        return placed


def _finish_latents(
    spec: ImageSpec, state: SamplerState, slot: int, output_scale: float
) -> Callable[[], FinishedImage]:
    """Copy the latents of a slot. This waits for its last step: the next step reuses the memory."""
    with device_errors():
        latents = np.asarray(state.latents)[slot] * np.float32(output_scale)

    def check() -> FinishedImage:
        require_finite(latents, spec.prompt)
        return FinishedImage(pixels=latents, flagged=False)

    return check
