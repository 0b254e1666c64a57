"""Run a batch step by step with the executables of its shape.

Input: executables, weights, and the inputs of a batch on the devices. Output: step counts, then
images or latents. It uses neither the tokenizer nor the mesh.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import jax
import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import DeviceError
from imagefleet.worker.engine.compile.program_compiler import ShapeExecutables, choose_step
from imagefleet.worker.engine.contract.interface import ImageArrays, ImageSpec, OutputArray
from imagefleet.worker.engine.contract.unfinished_latents import require_finite
from imagefleet.worker.engine.sampling.arrays import BatchInputs, Decoded, InitLatents, Weights
from imagefleet.worker.engine.schedulers.registry import steps_after

_MAX_STEPS_AHEAD: Final = 2
"""At most this many steps are dispatched to the devices beyond the last step known to be done. Two
are enough that the devices never wait for Python, and few enough that a cancelled batch stops
soon."""


class DeviceBatch:
    """The device batch is a batch on JAX devices. See `contract.interface.RunningBatch`."""

    def __init__(
        self,
        executables: ShapeExecutables,
        weights: Weights,
        inputs: BatchInputs,
        init_latents: InitLatents,
        *,
        specs: Sequence[ImageSpec],
        guided_calls: Sequence[int],
        calls: Sequence[int],
        output_scales: Sequence[float],
        rgb_factors: jax.Array,
    ) -> None:
        """
        Args:
            executables: Of the shape of all specs.
            weights: The model's, on the devices.
            inputs: On the devices.
            init_latents: On the devices.
            specs: One for each slot that is not padding.
            guided_calls: The number of the first calls of each spec that need guidance.
            calls: The number of calls of the denoiser of each spec.
            output_scales: The factor from the last samples of each spec to diffusers' latents.
            rgb_factors: The linear map from latents to RGB for `previews`, `[c + 1, 3]`.
        """
        self._executables = executables
        self._guided_calls = max(guided_calls)
        self._weights = weights
        self._specs = specs
        self._calls = calls
        self._output_scales = np.asarray(output_scales, np.float32)
        self._rgb_factors = rgb_factors
        self._live = set(range(len(specs)))
        self._conditions, self._state = executables.begin(weights, inputs, init_latents)
        self._decoded: Decoded | None = None
        self._at_end = False
        """Whether the last step was dispatched."""

    def __iter__(self) -> Iterator[int]:
        """Advance to the end. Decoding is dispatched before the last step is reported.

        A second iteration is harmless: a slot does not move past its last row.
        """
        dispatched: deque[jax.Array] = deque()
        call = 0
        with device_errors():
            while call < self._required_calls():
                step = choose_step(
                    self._executables,
                    guidance=call < self._guided_calls,
                    reference=any(self._specs[slot].init_image for slot in self._live),
                )
                self._state, done = step(self._weights.denoiser, self._conditions, self._state)
                dispatched.append(done)
                call += 1
                if len(dispatched) > _MAX_STEPS_AHEAD:
                    dispatched.popleft().block_until_ready()
                    yield self._steps_after(call - _MAX_STEPS_AHEAD)
            if not self._live:
                return
            self._at_end = True
            if any(self._specs[slot].denoising_end is None for slot in self._live):
                self._decode()
            for finished in range(call - len(dispatched) + 1, call + 1):
                dispatched.popleft().block_until_ready()
                yield self._steps_after(finished)

    def drop(self, slots: Sequence[int]) -> None:
        """Stop waiting for these slots: the batch ends with the longest slot that is left.

        A dropped slot is still computed, since nothing else could use its place, but its result is
        not checked.
        """
        self._live -= set(slots)

    def previews(self) -> Callable[[], ImageArrays]:
        """Start to compute previews, and return a function that waits for them.

        Raises:
            DeviceError: the devices failed. The returned function raises it, too.
        """
        with device_errors():
            small = self._executables.preview(self._state, self._rgb_factors)
            small.copy_to_host_async()

        def wait() -> ImageArrays:
            with device_errors():
                return np.asarray(small)[: len(self._specs)]

        return wait

    def images(self) -> ImageArrays:
        """Wait for the devices and return the images.

        Raises:
            DeviceError: the devices failed, or an image contains NaN or infinity.
        """
        decoded = self._wait_for_decoded()
        with device_errors():
            images = np.asarray(decoded.images)
        if broken := self.not_finite():
            raise DeviceError(
                f"{len(broken)} of {len(self._specs)} images contain NaN or infinity, the first "
                f"for prompt {self._specs[broken[0]].prompt[:60]!r}"
            )
        return images[: len(self._specs)]

    def outputs(self) -> list[OutputArray]:
        """Wait for the devices and return the images, or the latents of unfinished ones.

        Raises:
            DeviceError: the devices failed, or an image or latents contain NaN or infinity.
        """
        unfinished = [spec.denoising_end is not None for spec in self._specs]
        if not any(unfinished):
            return list(self.images())
        latents = self._latents()
        images = latents if all(unfinished) else self.images()
        return [
            (latents if is_unfinished else images)[slot]
            for slot, is_unfinished in enumerate(unfinished)
        ]

    def _latents(self) -> NDArray[np.float32]:
        """Wait for the devices and return the latents of all slots, as diffusers keeps them."""
        self._wait_for_end()
        with device_errors():
            latents = np.asarray(self._state.latents)[: len(self._specs)]
        latents = latents * self._output_scales[:, None, None, None]
        for slot in sorted(self._live):
            spec = self._specs[slot]
            if spec.denoising_end is not None:
                require_finite(latents[slot], spec.prompt)
        return latents

    def not_finite(self) -> list[int]:
        """Wait for the devices and return the slots whose image contains NaN or infinity.

        Slots that end as latents have no image.

        Raises:
            DeviceError: the devices failed.
        """
        decoded = self._wait_for_decoded()
        with device_errors():
            finite = np.asarray(decoded.finite)
        return [
            slot
            for slot in sorted(self._live)
            if not finite[slot] and self._specs[slot].denoising_end is None
        ]

    def flagged(self) -> tuple[bool, ...]:
        """Wait for the devices and return which images the safety checker made black.

        Raises:
            DeviceError: the devices failed.
        """
        if all(spec.denoising_end is not None for spec in self._specs):
            return (False,) * len(self._specs)
        decoded = self._wait_for_decoded()
        with device_errors():
            return tuple(np.asarray(decoded.flagged)[: len(self._specs)].tolist())

    def _wait_for_decoded(self) -> Decoded:
        self._wait_for_end()
        with device_errors():
            return self._decoded or self._decode()

    def _wait_for_end(self) -> None:
        if not self._at_end:
            for _ in self:
                pass

    def _required_calls(self) -> int:
        return max((self._calls[slot] for slot in self._live), default=0)

    def _steps_after(self, call: int) -> int:
        """Return the steps done after this many calls, in the slot that has the most."""
        done = (
            steps_after(call, self._specs[slot].steps, self._calls[slot]) for slot in self._live
        )
        return max(done, default=call)

    def _decode(self) -> Decoded:
        self._decoded = decoded = Decoded(*self._executables.decode(self._weights, self._state))
        for array in decoded:
            array.copy_to_host_async()
        return decoded


@contextmanager
def device_errors() -> Iterator[None]:
    """Convert errors of JAX's runtime to `DeviceError`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise DeviceError(f"the devices failed on a batch: {reason}") from error
