"""Work for the devices: images wanted together, and their slots in a device batch.

It uses the terms of the engine. It depends on neither jobs nor Celery nor Redis nor JAX.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from imagefleet.shared.errors import ImagefleetError
from imagefleet.worker.engine.contract.control_image import ControlImage
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageArray, ImageSpec, OutputArray, Shape
from imagefleet.worker.engine.contract.unfinished_latents import InputLatents

InitInput = InitImage | InputLatents | ControlImage
"""One of the things that images may start from, or be steered by."""

_FIELDS: Final[dict[type[InitInput], str]] = {
    InitImage: "init_image",
    InputLatents: "input_latents",
    ControlImage: "control_image",
}
"""It has the field of `ImageSpec` for each of them."""


@dataclass(kw_only=True, eq=False)
class Work:
    """Images wanted together. Any thread may deliver them, one by one."""

    shape: Shape
    specs: tuple[ImageSpec, ...]
    deliveries: int = 1
    alone: bool = False
    """Whether nothing else may be on the devices while it runs, because it may end its worker."""
    device_s: float = 0.0
    """Seconds that the batches of its images were on the devices."""
    wants_preview: bool = False
    fetch_preview: Callable[[], ImageArray] | None = None
    """Waits for the latest preview of the first image and returns it. The device loop replaces it
    from time to time while the work runs."""

    def __post_init__(self) -> None:
        self.flagged: set[int] = set()
        """The safety checker of the model blacked out the images with these indices."""
        self._images: dict[int, OutputArray] = {}
        self._done: Future[None] = Future()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The id of the job; empty if it is none."""
        return ""

    def start_from(self, *inputs: InitInput) -> bool:
        """Let all images start from an init image or latents, and be steered by a control image.
        Return False if the work has ended: it takes none then."""
        with self._lock:
            if self._done.done():
                return False
            given: dict[str, Any] = {_FIELDS[type(each)]: each for each in inputs}
            self.specs = tuple(replace(spec, **given) for spec in self.specs)
            return True

    def deliver(self, index: int, image: OutputArray, *, flagged: bool = False) -> None:
        """Add image `index`, or its latents. The last image completes the work."""
        with self._lock:
            if self._done.done():
                return
            if flagged:
                self.flagged.add(index)
            self._images[index] = image
            if len(self._images) == len(self.specs):
                self._done.set_result(None)

    def abandon(self, error: ImagefleetError) -> None:
        """End the work without its images. Threads that wait for them get the first `error`.

        It loses its traceback, cause and context. Their frames may hold the bytes of an image of 20
        MB, for as long as anything refers to the work.
        """
        error.__cause__ = error.__context__ = error.__traceback__ = None
        with self._lock:
            if not self._done.done():
                self._done.set_exception(error)

    def wait_for_images(self) -> list[OutputArray]:
        """Wait for all images and return them in the order of `specs`.

        Raises:
            ImagefleetError: the error that `abandon` was called with.
        """
        self._done.result()
        return [self._images[index] for index in range(len(self.specs))]

    def release_images(self) -> None:
        """Drop the images, and those that they started from, of work that has ended.

        Its owner calls this when it needs them no more. Without it they would stay in memory as
        long as anything refers to the work, as all rows of a shard do.
        """
        with self._lock:
            self._images.clear()
            self.specs = tuple(
                replace(spec, init_image=None, input_latents=None, control_image=None)
                for spec in self.specs
            )

    @property
    def ended(self) -> bool:
        """Whether all images were delivered or the work was abandoned."""
        return self._done.done()

    @property
    def delivered(self) -> int:
        """Number of images delivered so far."""
        return len(self._images)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The place of one image in a device batch."""

    work: Work
    index: int

    @property
    def spec(self) -> ImageSpec:
        """The spec of the image."""
        return self.work.specs[self.index]

    @property
    def wants_preview(self) -> bool:
        """Whether a preview of this image should be made: only the first one of a job has one."""
        return self.index == 0 and self.work.wants_preview and not self.work.ended


def slots_of(work: Work) -> list[Slot]:
    """Return one slot for each image of `work`."""
    return [Slot(work=work, index=index) for index in range(len(work.specs))]


def work_in(batch: Iterable[Slot]) -> list[Work]:
    """Return the work that has a slot in `batch`, each once, in order."""
    return list(dict.fromkeys(slot.work for slot in batch))
