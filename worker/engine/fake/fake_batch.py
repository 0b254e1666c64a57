"""Make the batches of the fake engine, and its images.

Input: image specs, and how long a device takes for a step and for decoding an image. Output: images
that are a pure function of their specs.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from imagefleet.worker.engine.contract.interface import (
    ImageArray,
    ImageArrays,
    ImageSpec,
    OutputArray,
    Shape,
)
from imagefleet.worker.engine.contract.unfinished_latents import LatentFormat
from imagefleet.worker.engine.fake.fake_stream import DeviceClock, sleep_until

LATENTS: Final = LatentFormat(channels=4, pixels_per_latent=8, scaling="scaling_factor=0.13025")
"""It is the format of SDXL."""
_MAX_STEPS_AHEAD: Final = 2
"""As in batches of the real engine, at most this many steps are dispatched beyond the last one
known to be done."""


class FakeBatch:
    """The batch sleeps at each step. See `worker.engine.contract.interface.RunningBatch`."""

    def __init__(
        self,
        specs: Sequence[ImageSpec],
        shape: Shape,
        devices: DeviceClock,
        step_s: float,
        decode_s: float,
        before_steps: Callable[[Sequence[ImageSpec]], None],
    ) -> None:
        self._specs, self._shape = specs, shape
        self._devices, self._step_s, self._decode_s = devices, step_s, decode_s
        self._before_steps = before_steps
        self._decoded_at: float | None = None
        self._dropped: set[int] = set()

    def drop(self, slots: Sequence[int]) -> None:
        self._dropped.update(slots)

    def __iter__(self) -> Iterator[int]:
        self._before_steps(self._specs)
        step, ahead = 0, deque[float]()
        while step < self._required_steps():
            ahead.append(self._devices.dispatch(self._step_s))
            step += 1
            if len(ahead) > _MAX_STEPS_AHEAD:
                sleep_until(ahead.popleft())
                yield step - _MAX_STEPS_AHEAD
        self._decoded_at = self._devices.dispatch(self._decode_s)
        for finished in range(step - len(ahead) + 1, step + 1):
            sleep_until(ahead.popleft())
            yield finished

    def previews(self) -> Callable[[], ImageArrays]:
        small = self._images()[:, ::8, ::8]
        return lambda: small

    def images(self) -> ImageArrays:
        self._wait_for_end()
        return self._images()

    def outputs(self) -> list[OutputArray]:
        self._wait_for_end()
        return [fake_output(spec, self._shape) for spec in self._specs]

    def _wait_for_end(self) -> None:
        if self._decoded_at is None:
            for _ in self:
                pass
        sleep_until(self._decoded_at or 0.0)

    def _images(self) -> ImageArrays:
        return np.stack([fake_image(spec, self._shape) for spec in self._specs])

    def flagged(self) -> tuple[bool, ...]:
        return (False,) * len(self._specs)

    def _required_steps(self) -> int:
        live = (spec for slot, spec in enumerate(self._specs) if slot not in self._dropped)
        return max((spec.steps for spec in live), default=0)


def fake_image(spec: ImageSpec, shape: Shape) -> ImageArray:
    """Return an image whose colour comes from the spec's hash, with a vertical gradient."""
    colour = np.frombuffer(hashlib.sha256(repr(spec).encode()).digest()[:3], np.uint8)
    gradient = np.linspace(0, 60, shape.height).astype(np.uint8)[:, None, None]
    return np.broadcast_to(colour // 2 + gradient, (shape.height, shape.width, 3)).copy()


def fake_output(spec: ImageSpec, shape: Shape) -> OutputArray:
    """Return the image; with `denoising_end` its latents, drawn from the spec's hash."""
    if spec.denoising_end is None:
        return fake_image(spec, shape)
    seed = int.from_bytes(hashlib.sha256(repr(spec).encode()).digest()[:4])
    factor = LATENTS.pixels_per_latent
    size = (shape.height // factor, shape.width // factor, LATENTS.channels)
    return np.random.default_rng(seed).standard_normal(size, np.float32)
