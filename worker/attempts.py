"""Work for the devices, and the commonest kind of it: one worker's attempt at one job.

Knows the engine's words and the job's. Knows no Celery, no Redis, no JAX.
"""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.model import JobRequest
from imagefleet.shared.jobs.offers import Offer
from imagefleet.worker.engine.base import ImageSpec, ModelInfo, Shape

Picture = NDArray[np.uint8]
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
    sketch: Callable[[], Picture] | None = None
    """Waits for a small picture of what its first one is by now; replaced as it goes on."""

    def __post_init__(self) -> None:
        self.flagged: set[int] = set()
        """Pictures that the model's safety checker made black."""
        self._pictures: dict[int, Picture] = {}
        self._done: Future[list[Picture]] = Future()
        self._lock = threading.Lock()

    def deliver(self, index: int, picture: Picture, *, flagged: bool = False) -> None:
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

    def pictures(self) -> list[Picture]:
        """Wait for all pictures, in the order of `specs`. Raises what `abandon` was told."""
        return self._done.result()

    @property
    def ended(self) -> bool:
        return self._done.done()

    @property
    def delivered(self) -> int:
        return len(self._pictures)


@dataclass(kw_only=True, eq=False)
class Attempt(Work):
    """A job in this worker's hands."""

    job_id: str
    request: JobRequest
    tag: str
    """Of the claim it came with."""
    token: str
    """What the record is compared with: a later attempt has another one. See `Claimed.attempt`."""
    submitted_at: float = 0.0
    """Unix seconds by the server's clock, as the record has it."""
    retries: int = 0
    """Other failures before it, as the record has them."""
    began_at: float = field(default_factory=time.time)
    step: int = 0
    """The latest one that was told."""
    quarter: int = 0
    """Quarter of its steps that was last called back."""

    def step_of_all(self, step: int, painting: int) -> int:
        """Where the job is as a whole, while `painting` of its pictures are at `step` and the
        others are done or wait: the mean over its pictures. Never goes back."""
        steps = self.specs[0].steps
        done = self.delivered * steps + painting * min(step, steps)
        self.step = max(self.step, min(steps, done // len(self.specs)))
        return self.step


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


def offer_of(info: ModelInfo) -> Offer:
    """What this worker can do, in the words producers read."""
    return Offer(
        model=info.name,
        digest=info.digest,
        shapes=tuple((shape.height, shape.width) for shape in info.shapes),
        schedulers=info.schedulers,
        max_num_inference_steps=info.max_num_inference_steps,
        num_inference_steps=info.default_num_inference_steps,
        guidance_scale=info.default_guidance_scale,
        scheduler=info.default_scheduler,
    )


def plan_attempt(
    job_id: str,
    request: JobRequest,
    info: ModelInfo,
    *,
    deliveries: int = 1,
    tag: str = "",
    token: str = "",
) -> Attempt:
    """Fill in the model's defaults: from what was asked to exactly what is painted."""
    steps, guidance = request.num_inference_steps, request.guidance_scale
    shape = info.shapes[0]
    if request.height is not None and request.width is not None:
        shape = Shape(height=request.height, width=request.width)
    specs = tuple(
        ImageSpec(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            seed=request.seed,
            image_index=index,
            num_inference_steps=info.default_num_inference_steps if steps is None else steps,
            guidance_scale=info.default_guidance_scale if guidance is None else guidance,
            scheduler=request.scheduler or info.default_scheduler,
        )
        for index in range(request.num_images_per_prompt)
    )
    return Attempt(
        job_id=job_id,
        request=request,
        shape=shape,
        specs=specs,
        deliveries=deliveries,
        tag=tag,
        token=token,
        wants_sketch=request.preview,
    )


def work_in(batch: Iterable[Slot]) -> list[Work]:
    """The work that has a slot in `batch`, each once, in order."""
    return list(dict.fromkeys(slot.work for slot in batch))


def attempts_in(batch: Iterable[Slot]) -> list[Attempt]:
    """The jobs' attempts that have a slot in `batch`, each once, in order."""
    return [work for work in work_in(batch) if isinstance(work, Attempt)]
