"""An engine without a model, for tests of everything around it. Numpy only.

Goes in: the same as for a real engine. Comes out: pictures that are a pure function of their spec,
after as long as it was told to take.
"""

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from imagefleet.shared.errors import ConfigurationError, DeviceError
from imagefleet.worker.engine.interface import ImageSpec, ModelInfo, Pictures, Rendering, Shape

FAIL: Final = "[fail]"
"""A prompt with this in it breaks its batch."""
DIE: Final = "[die]"
"""A prompt with this in it takes its process down, as a crashing device runtime does."""
HANG: Final = "[hang]"
"""A prompt with this in it never ends, until `FakeEngine.release`."""

_FORM: Final = "write fake:seconds=0.05,capacity=8 (seconds >= 0, capacity >= 1)"
_WORDS: Final = 77


class FakeEngine:
    """See `worker.engine.interface.Engine`."""

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        capacity: int = 8,
        shapes: Sequence[Shape] | None = None,
        max_num_inference_steps: int = 100,
        sick: Path | None = None,
    ) -> None:
        """
        Args:
            seconds: Per denoising step of a batch.
            capacity: Pictures per batch.
            shapes: Declared ones; 64x64 by default.
            max_num_inference_steps: As announced.
            sick: While this file is there, every batch breaks, as on a dying device.
        """
        self.capacity = capacity
        self.info = ModelInfo(
            name="fake",
            digest="sha256:" + "0" * 64,
            shapes=tuple(shapes or [Shape(height=64, width=64)]),
            schedulers=("ddim",),
            default_scheduler="ddim",
            default_num_inference_steps=min(4, max_num_inference_steps),
            default_guidance_scale=7.5,
            max_num_inference_steps=max_num_inference_steps,
        )
        self._seconds = seconds
        self._released = threading.Event()
        self._sick = sick

    @classmethod
    def parse(
        cls, model: str, *, shapes: Sequence[Shape] | None, max_num_inference_steps: int
    ) -> "FakeEngine":
        """From `fake` or `fake:seconds=0.05,capacity=8`.

        Raises:
            ConfigurationError: another word, or not a number.
        """
        _, _, words = model.partition(":")
        given = dict(word.partition("=")[::2] for word in words.split(",") if word)
        try:
            seconds, capacity = float(given.pop("seconds", 0)), int(given.pop("capacity", 8))
        except ValueError:
            raise ConfigurationError(f"IMAGEFLEET_MODEL={model!r}: {_FORM}") from None
        sick = given.pop("sick", None)
        if given or seconds < 0 or capacity < 1:
            raise ConfigurationError(f"IMAGEFLEET_MODEL={model!r}: {_FORM}")
        return cls(
            seconds=seconds,
            capacity=capacity,
            shapes=shapes,
            max_num_inference_steps=max_num_inference_steps,
            sick=None if sick is None else Path(sick),
        )

    def warm(self) -> None:
        """Nothing to do."""

    def render(self, specs: Sequence[ImageSpec], shape: Shape) -> Rendering:
        """Start a batch.

        Raises:
            ValueError: no specs, too many, or an undeclared shape.
            DeviceError: sick.
        """
        if self._sick is not None and self._sick.exists():
            raise DeviceError("told to be sick")
        if shape not in self.info.shapes:
            raise ValueError(f"shape {shape} is not declared")
        if not 1 <= len(specs) <= self.capacity:
            raise ValueError(f"{len(specs)} pictures; a batch takes 1 to {self.capacity}")
        return _FakeBatch(specs, shape, self._seconds, self._released)

    def truncated(self, prompt: str) -> bool:
        """A word is a token here."""
        return len(prompt.split()) > _WORDS - 2

    @property
    def recompiles(self) -> int:
        return 0

    def release(self) -> None:
        """Let hanging batches go on."""
        self._released.set()


class _FakeBatch:
    """See `worker.engine.interface.Rendering`."""

    def __init__(
        self, specs: Sequence[ImageSpec], shape: Shape, seconds: float, released: threading.Event
    ) -> None:
        self._specs, self._shape = specs, shape
        self._seconds, self._released = seconds, released
        self._finished = False
        self._dropped: set[int] = set()

    def drop(self, slots: Sequence[int]) -> None:
        self._dropped.update(slots)

    def __iter__(self) -> Iterator[int]:
        for spec in self._specs:
            if FAIL in spec.prompt:
                raise DeviceError(f"told to fail by prompt {spec.prompt[:60]!r}")
            if DIE in spec.prompt:
                os.kill(os.getpid(), signal.SIGKILL)
            if HANG in spec.prompt:
                self._released.wait()
        step = 0
        while step < self._steps_wanted():
            time.sleep(self._seconds)
            step += 1
            yield step
        self._finished = True

    def previews(self) -> Callable[[], Pictures]:
        small = self._drawn()[:, ::8, ::8]
        return lambda: small

    def pictures(self) -> Pictures:
        if not self._finished:
            for _ in self:
                pass
        return self._drawn()

    def _drawn(self) -> Pictures:
        return np.stack([_picture(spec, self._shape) for spec in self._specs])

    def flagged(self) -> tuple[bool, ...]:
        return (False,) * len(self._specs)

    def _steps_wanted(self) -> int:
        live = (spec for at, spec in enumerate(self._specs) if at not in self._dropped)
        return max((spec.steps for spec in live), default=0)


def _picture(spec: ImageSpec, shape: Shape) -> Pictures:
    """A plain colour over a gradient, both from the spec's hash."""
    colour = np.frombuffer(hashlib.sha256(repr(spec).encode()).digest()[:3], np.uint8)
    rise = np.linspace(0, 60, shape.height).astype(np.uint8)[:, None, None]
    return np.broadcast_to(colour // 2 + rise, (shape.height, shape.width, 3)).copy()
