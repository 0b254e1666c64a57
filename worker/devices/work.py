"""Work for the devices: images wanted together, and their slots in a device batch.

Knows the engine's words. Knows no job, no Celery, no Redis, no JAX.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import ImagefleetError
from imagefleet.worker.engine.interface import ImageSpec, Shape

ImageArray = NDArray[np.uint8]
"""[height, width, 3], RGB"""


@dataclass(kw_only=True, eq=False)
class Work:
    """Pictures wanted together. They arrive one by one, from any thread."""

    shape: Shape
    specs: tuple[ImageSpec, ...]
    deliveries: int = 1
    device_s: float = 0.0
    """Seconds its pictures' batches were on the devices."""
    wants_sketch: bool = False
    sketch: Callable[[], ImageArray] | None = None
    """Waits for a small picture of what its first one is by now; replaced as it goes on."""

    def __post_init__(self) -> None:
        self.flagged: set[int] = set()
        """Pictures that the model's safety checker made black."""
        self._pictures: dict[int, ImageArray] = {}
        self._done: Future[list[ImageArray]] = Future()
        self._lock = threading.Lock()

    def deliver(self, index: int, picture: ImageArray, *, flagged: bool = False) -> None:
        """Hand over picture `index`; the last one completes the attempt."""
        with self._lock:
            if flagged:
                self.flagged.add(index)
            self._pictures[index] = picture
            if len(self._pictures) == len(self.specs) and not self._done.done():
                self._done.set_result([self._pictures[i] for i in range(len(self.specs))])

    def abandon(self, error: ImagefleetError) -> None:
        """Nothing more will come. Whoever waits hears `error`; the first one counts."""
        with self._lock:
            if not self._done.done():
                self._done.set_exception(error)

    def pictures(self) -> list[ImageArray]:
        """Wait for all pictures, in the order of `specs`. Raises what `abandon` was told."""
        return self._done.result()

    @property
    def ended(self) -> bool:
        return self._done.done()

    @property
    def delivered(self) -> int:
        return len(self._pictures)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One picture's place in a device batch."""

    work: Work
    index: int

    @property
    def spec(self) -> ImageSpec:
        return self.work.specs[self.index]


def slots_of(work: Work) -> list[Slot]:
    return [Slot(work=work, index=index) for index in range(len(work.specs))]


def work_in(batch: Iterable[Slot]) -> list[Work]:
    """The work that has a slot in `batch`, each once, in order."""
    return list(dict.fromkeys(slot.work for slot in batch))
