"""Make the streams of the fake engine, and the clock of the devices that they pretend to have.

Input: image specs, and how long a device takes for a step and for decoding an image. Output: the
images of the fake engine, when such a device would have made them.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from imagefleet.worker.engine.contract.interface import (
    FinishedImage,
    ImageArray,
    ImageArrays,
    ImageSpec,
    OutputArray,
    Shape,
)

_MAX_STEPS_AHEAD: Final = 1
"""As in streams of the real engine, at most this many steps are dispatched beyond the last one
known to be done."""


class DeviceClock:
    """Keeps the time at which a pretended device is done with all that was dispatched to it."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def dispatch(self, seconds: float) -> float:
        """Let the device do something when it is free. Return when it will be done (monotonic)."""
        self._free_at = max(time.monotonic(), self._free_at) + seconds
        return self._free_at


def sleep_until(moment: float) -> None:
    """Sleep until a moment of `time.monotonic`."""
    time.sleep(max(0.0, moment - time.monotonic()))


@dataclass
class _Running:
    """It is the image in one slot."""

    spec: ImageSpec
    steps: int = 0
    """It counts the steps that were dispatched."""


class FakeStream:
    """It has the slots of one pretended device. See `worker.engine.contract.interface.Stream`."""

    def __init__(
        self,
        *,
        shapes: Sequence[Shape],
        slots: int,
        step_s: float,
        decode_s: float,
        before_step: Callable[[Sequence[ImageSpec]], None],
        image_of: Callable[[ImageSpec, Shape], ImageArray],
        output_of: Callable[[ImageSpec, Shape], OutputArray],
    ) -> None:
        """
        Args:
            shapes: Declared shapes.
            slots: Images that the device denoises together.
            step_s: Seconds of a step.
            decode_s: Seconds of decoding one image.
            before_step: Called with the running specs before each step; it may raise.
            image_of: Makes the image of a spec.
            output_of: Makes what a spec ends as: its image or its latents.
        """
        self._shapes, self._slots = shapes, slots
        self._step_s, self._decode_s = step_s, decode_s
        self._before_step = before_step
        self._image_of, self._output_of = image_of, output_of
        self._device = DeviceClock()
        self._shape: Shape | None = None
        self._running: dict[int, _Running] = {}
        self._ahead: deque[float] = deque()

    def start(self, slot: int, spec: ImageSpec, shape: Shape) -> None:
        if shape not in self._shapes:
            raise ValueError(f"shape {shape} is not declared")
        if self._running and shape != self._shape:
            raise ValueError(f"the stream runs {self._shape}; shape {shape} has to wait")
        if slot in self._running or not 0 <= slot < self._slots:
            raise ValueError(f"slot {slot} is not a free one of {self._slots}")
        self._shape = shape
        self._running[slot] = _Running(spec)

    def step(self) -> list[int]:
        self._before_step([each.spec for each in self._running.values()])
        self._ahead.append(self._device.dispatch(self._step_s))
        if len(self._ahead) > _MAX_STEPS_AHEAD:
            sleep_until(self._ahead.popleft())
        for each in self._running.values():
            each.steps += 1
        return [slot for slot, each in self._running.items() if each.steps >= each.spec.steps]

    def steps_done(self, slot: int) -> int:
        return max(0, self._running[slot].steps - len(self._ahead))

    def finish(self, slot: int) -> Callable[[], FinishedImage]:
        spec, shape = self._running.pop(slot).spec, self._shape
        assert shape is not None
        done_at = self._device.dispatch(self._decode_s)

        def wait() -> FinishedImage:
            sleep_until(done_at)
            return FinishedImage(pixels=self._output_of(spec, shape), flagged=False)

        return wait

    def drop(self, slot: int) -> None:
        del self._running[slot]

    def previews(self) -> Callable[[], ImageArrays]:
        assert self._shape is not None
        small = np.zeros(
            (self._slots, self._shape.height // 8, self._shape.width // 8, 3), np.uint8
        )
        for slot, each in self._running.items():
            small[slot] = self._image_of(each.spec, self._shape)[::8, ::8]
        return lambda: small

    def reset(self) -> None:
        self._running.clear()
        self._ahead.clear()
