"""Fake an engine without a model, for tests of everything around an engine. It needs only numpy.

Goes in: the same specs as for a real engine, and how long a step takes. Comes out: images that are
a pure function of their specs.
"""

import hashlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from imagefleet.shared.errors import ConfigurationError, DeviceError
from imagefleet.worker.engine.interface import (
    DeviceMemory,
    ImageArray,
    ImageArrays,
    ImageSpec,
    ModelInfo,
    RunningBatch,
    Shape,
)

log = logging.getLogger(__name__)

FAIL: Final = "[fail]"
"""A prompt that contains this fails its batch."""
DIE: Final = "[die]"
"""A prompt that contains this kills the process, like a device runtime that crashes."""
KILLED: Final = "the fake engine was told to kill its process"
"""The beginning of the line in the log before that."""
HANG: Final = "[hang]"
"""A prompt that contains this hangs its batch until `FakeEngine.release`."""

_USAGE: Final = "write fake:seconds=0.05,capacity=8 (seconds >= 0, capacity >= 1)"
_MAX_TOKENS: Final = 77


class FakeEngine:
    """The fake engine runs no model. See `worker.engine.interface.Engine`."""

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        capacity: int = 8,
        shapes: Sequence[Shape] | None = None,
        max_num_inference_steps: int = 100,
        failure_file: Path | None = None,
    ) -> None:
        """
        Args:
            seconds: Duration of one denoising step of a batch.
            capacity: Images per batch.
            shapes: Declared shapes; by default 64x64.
            max_num_inference_steps: The announced limit.
            failure_file: Every batch fails while this file exists, as on a failing device.
        """
        self.capacity = capacity
        self.devices = "fake"
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
        self._failure_file = failure_file

    @classmethod
    def parse(
        cls, model: str, *, shapes: Sequence[Shape] | None, max_num_inference_steps: int
    ) -> "FakeEngine":
        """Make an engine from `fake` or `fake:seconds=0.05,capacity=8`.

        The option `sick` is the path of the failure file.

        Raises:
            ConfigurationError: an option is unknown or not a number.
        """
        _, _, text = model.partition(":")
        options = dict(option.partition("=")[::2] for option in text.split(",") if option)
        try:
            seconds, capacity = float(options.pop("seconds", 0)), int(options.pop("capacity", 8))
        except ValueError:
            raise ConfigurationError(f"IMAGEFLEET_MODEL={model!r}: {_USAGE}") from None
        failure_file = options.pop("sick", None)
        if options or seconds < 0 or capacity < 1:
            raise ConfigurationError(f"IMAGEFLEET_MODEL={model!r}: {_USAGE}")
        return cls(
            seconds=seconds,
            capacity=capacity,
            shapes=shapes,
            max_num_inference_steps=max_num_inference_steps,
            failure_file=None if failure_file is None else Path(failure_file),
        )

    def warm(self) -> None:
        """Do nothing: there is nothing to compile."""

    def start_batch(self, specs: Sequence[ImageSpec], shape: Shape) -> RunningBatch:
        """Start a batch.

        Raises:
            ValueError: no specs, too many specs, or an undeclared shape.
            DeviceError: the failure file exists.
        """
        if self._failure_file is not None and self._failure_file.exists():
            raise DeviceError(f"the fake engine was told to fail by the file {self._failure_file}")
        if shape not in self.info.shapes:
            raise ValueError(f"shape {shape} is not declared")
        if not 1 <= len(specs) <= self.capacity:
            raise ValueError(f"{len(specs)} images; a batch takes 1 to {self.capacity}")
        return _FakeBatch(specs, shape, self._seconds, self._released)

    def truncated(self, prompt: str) -> bool:
        """Return whether the prompt has too many words; each word is one token here."""
        return len(prompt.split()) > _MAX_TOKENS - 2

    @property
    def recompiles(self) -> int:
        return 0

    def memory(self) -> list[DeviceMemory]:
        return []

    def release(self) -> None:
        """Let batches that hang continue."""
        self._released.set()


class _FakeBatch:
    """The fake batch sleeps at each step. See `worker.engine.interface.RunningBatch`."""

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
                raise DeviceError(f"the fake engine was told to fail by {spec.prompt[:60]!r}")
            if DIE in spec.prompt:
                log.error("%s by %r", KILLED, spec.prompt[:60])
                os.kill(os.getpid(), signal.SIGKILL)
            if HANG in spec.prompt:
                self._released.wait()
        step = 0
        while step < self._required_steps():
            time.sleep(self._seconds)
            step += 1
            yield step
        self._finished = True

    def previews(self) -> Callable[[], ImageArrays]:
        small = self._images()[:, ::8, ::8]
        return lambda: small

    def images(self) -> ImageArrays:
        if not self._finished:
            for _ in self:
                pass
        return self._images()

    def _images(self) -> ImageArrays:
        return np.stack([_image(spec, self._shape) for spec in self._specs])

    def flagged(self) -> tuple[bool, ...]:
        return (False,) * len(self._specs)

    def _required_steps(self) -> int:
        live = (spec for slot, spec in enumerate(self._specs) if slot not in self._dropped)
        return max((spec.steps for spec in live), default=0)


def _image(spec: ImageSpec, shape: Shape) -> ImageArray:
    """Return an image whose colour comes from the spec's hash, with a vertical gradient."""
    colour = np.frombuffer(hashlib.sha256(repr(spec).encode()).digest()[:3], np.uint8)
    gradient = np.linspace(0, 60, shape.height).astype(np.uint8)[:, None, None]
    return np.broadcast_to(colour // 2 + gradient, (shape.height, shape.width, 3)).copy()
