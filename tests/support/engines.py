"""A hand-written engine for tests of the code around an engine."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from imagefleet.worker.engine.contract.device_memory import DeviceMemory
from imagefleet.worker.engine.contract.interface import (
    ImageArrays,
    ImageSpec,
    ModelInfo,
    OutputArray,
    Shape,
    Stream,
)
from imagefleet.worker.engine.contract.text_cache_use import TextCacheUse

INFO = ModelInfo(
    name="tiny",
    digest="sha256:0",
    shapes=(Shape(height=64, width=64), Shape(height=64, width=128)),
    schedulers=("ddim",),
    default_scheduler="ddim",
    default_num_inference_steps=4,
    default_guidance_scale=3.0,
    max_num_inference_steps=50,
)


class RecordingEngine:
    """An engine that records its batches and returns images of one grey. `on_batch` may raise."""

    info = INFO
    devices = "recording"
    uses_host_memory = False
    recompiles = 0
    text_cache = TextCacheUse()

    def __init__(self, capacity: int, on_batch: Callable[[Sequence[ImageSpec]], None]) -> None:
        self.capacity = capacity
        self.batches: list[list[ImageSpec]] = []
        self._on_batch = on_batch

    def warm(self) -> None:
        return None

    def open_streams(self) -> list[Stream]:
        raise NotImplementedError

    def truncated(self, spec: ImageSpec) -> bool:
        return False

    def memory(self) -> list[DeviceMemory]:
        return []

    def start_batch(self, specs: Sequence[ImageSpec], shape: Shape) -> "RecordedBatch":
        self.batches.append(list(specs))
        self._on_batch(specs)
        return RecordedBatch(specs, shape)


class RecordedBatch:
    """A batch of the recording engine. Its safety checker flags the prompt `shocking`."""

    def __init__(self, specs: Sequence[ImageSpec], shape: Shape) -> None:
        self._specs, self._shape = specs, shape

    def __iter__(self) -> Iterator[int]:
        yield from range(1, max(spec.num_inference_steps for spec in self._specs) + 1)

    def drop(self, slots: Sequence[int]) -> None:
        return None

    def previews(self) -> Callable[[], ImageArrays]:
        return self.images

    def images(self) -> ImageArrays:
        size = (self._shape.height, self._shape.width, 3)
        return np.stack([np.full(size, spec.seed % 256, np.uint8) for spec in self._specs])

    def outputs(self) -> list[OutputArray]:
        return list(self.images())

    def flagged(self) -> tuple[bool, ...]:
        return tuple(spec.prompt == "shocking" for spec in self._specs)
