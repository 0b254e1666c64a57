"""One batch on its way through a shape's compiled programs.

Goes in: programs, weights, the arrays of a batch on the devices. Comes out: steps, then pictures.
Knows no tokenizer, no sampler and no mesh.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np

from imagefleet.shared.errors import DeviceError
from imagefleet.worker.engine.interface import ImageSpec, Pictures
from imagefleet.worker.engine.sampling import BatchInputs, Decoded, Given, Weights

_AHEAD: Final = 2
"""Steps handed to the devices beyond the one they are known to have done: enough for them never to
wait for us, few enough that a cancelled batch stops soon."""


@dataclass(frozen=True)
class Programs:
    """The executables of one shape."""

    begin: Any
    step: Any
    unguided_step: Any
    """Half the work, for batches in which no slot wants guidance."""
    encode: Any
    preview: Any
    decode: Any


class Batch:
    """See `worker.engine.interface.Rendering`."""

    def __init__(
        self,
        programs: Programs,
        weights: Weights,
        request: BatchInputs,
        given: Given,
        *,
        specs: Sequence[ImageSpec],
        calls: Sequence[int],
        colours: jax.Array,
    ) -> None:
        """
        Args:
            request: On the devices.
            calls: Of the model, for each spec.
            colours: What latents look like, for `previews`.
        """
        self._programs = programs
        guided = any(spec.guidance_scale > 1 for spec in specs)
        self._step = programs.step if guided else programs.unguided_step
        self._weights = weights
        self._specs = specs
        self._calls = calls
        self._colours = colours
        self._live = set(range(len(specs)))
        self._conditions, self._state = programs.begin(weights, request, given)
        self._decoded: Decoded | None = None

    def __iter__(self) -> Iterator[int]:
        """Advance to the end; decoding starts before the last step is reported.

        Once more from the start is harmless: a slot stops at its last row.
        """
        flying: deque[jax.Array] = deque()
        call = 0
        with device_errors():
            while call < self._calls_wanted():
                self._state, done = self._step(self._weights.unet, self._conditions, self._state)
                flying.append(done)
                call += 1
                if len(flying) > _AHEAD:
                    flying.popleft().block_until_ready()
                    yield self._steps_at(call - _AHEAD)
            if not self._live:
                return
            self._decode()
            for landed in range(call - len(flying) + 1, call + 1):
                flying.popleft().block_until_ready()
                yield self._steps_at(landed)

    def drop(self, slots: Sequence[int]) -> None:
        """The batch ends with its longest slot that is left. A dropped one goes on in its place,
        which nothing else could take, but what it comes to is not looked at."""
        self._live -= set(slots)

    def previews(self) -> Callable[[], Pictures]:
        """What there is by now."""
        with device_errors():
            small = self._programs.preview(self._state, self._colours)
            small.copy_to_host_async()

        def wait() -> Pictures:
            with device_errors():
                return np.asarray(small)[: len(self._specs)]

        return wait

    def pictures(self) -> Pictures:
        """Wait for the devices.

        Raises:
            DeviceError: they failed, or a picture is not made of finite numbers.
        """
        decoded = self._finished()
        with device_errors():
            pictures, finite = np.asarray(decoded.pictures), np.asarray(decoded.finite)
        broken = [index for index in sorted(self._live) if not finite[index]]
        if broken:
            raise DeviceError(
                f"{len(broken)} of {len(self._specs)} pictures came out as NaN or infinity, the "
                f"first for prompt {self._specs[broken[0]].prompt[:60]!r}"
            )
        return pictures[: len(self._specs)]

    def flagged(self) -> tuple[bool, ...]:
        """Wait for the devices."""
        decoded = self._finished()
        with device_errors():
            return tuple(np.asarray(decoded.flagged)[: len(self._specs)].tolist())

    def _finished(self) -> Decoded:
        if self._decoded is None:
            for _ in self:
                pass
        with device_errors():
            return self._decoded or self._decode()

    def _calls_wanted(self) -> int:
        return max((self._calls[slot] for slot in self._live), default=0)

    def _steps_at(self, call: int) -> int:
        """Steps done after so many calls: PNDM calls once more than it steps."""
        return min(call, max((self._specs[slot].steps for slot in self._live), default=call))

    def _decode(self) -> Decoded:
        self._decoded = decoded = Decoded(*self._programs.decode(self._weights, self._state))
        for array in decoded:
            array.copy_to_host_async()
        return decoded


@contextmanager
def device_errors() -> Iterator[None]:
    """Turn the runtime's errors into ours."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise DeviceError(f"the devices failed on a batch: {reason}") from error
