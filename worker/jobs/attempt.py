"""One worker's attempt at one job: work for the devices that has a record and a claim.

Knows the engine's words and the job's. Knows no Celery, no Redis, no JAX.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from imagefleet.shared.jobs.model import JobRequest
from imagefleet.shared.jobs.offers import Offer
from imagefleet.worker.devices.work import Slot, Work, work_in
from imagefleet.worker.engine.interface import ImageSpec, ModelInfo, Shape


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


def attempts_in(batch: Iterable[Slot]) -> list[Attempt]:
    """The jobs' attempts that have a slot in `batch`, each once, in order."""
    return [work for work in work_in(batch) if isinstance(work, Attempt)]
