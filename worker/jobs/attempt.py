"""One worker's attempt at one job: work for the devices that has a record and a claim.

It uses the terms of the engine and of the job. It depends on neither Celery nor Redis nor JAX.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from imagefleet.shared.jobs.image_expiry import KeepTime
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.devices.slots import Slot, Work, work_in
from imagefleet.worker.engine.contract.interface import ImageSpec, ModelInfo, Shape


@dataclass(kw_only=True, eq=False)
class Attempt(Work):
    """One worker's attempt at a job."""

    job_id: str
    request: JobRequest
    tag: str
    """The tag of the claim that brought the job."""
    token: str
    """Identifies the attempt. The record accepts changes only with the token of its current
    attempt; see `Claimed.attempt`."""
    submitted_at: float = 0.0
    """Unix seconds by the clock of the Redis server, as in the record."""
    retries: int = 0
    """Number of retries before this attempt, as in the record."""
    keep: KeepTime | None = None
    """How long its images are kept. None: whoever calls does not know about expired images."""
    began_at: float = field(default_factory=time.time)
    trace_parent: str | None = None
    """The span in which the job was submitted, as `traceparent` of W3C Trace Context."""
    step: int = 0
    """The latest step that was reported."""
    reported_quarter: int = 0
    """Quarter of its steps that the latest `progress` callback reported."""
    checked_at: float = field(default_factory=time.monotonic)
    """When it was last checked whether the job is cancelled (monotonic); at first, its start."""
    recorded_at: float = field(default_factory=time.monotonic)
    """When its step was last recorded (monotonic); at first, its start."""
    current_at: float = -math.inf
    """When Redis was last asked and said that the job still runs under this attempt; see
    `CurrentAttemptCheck`."""

    def advance_step(self, denoising: Iterable[int]) -> int:
        """Update and return the step of the whole job: the mean over its images.

        The step never decreases.

        Args:
            denoising: denoising steps done by each image on the devices; the others are delivered
                or wait.
        """
        steps = self.specs[0].steps
        done = self.delivered * steps + sum(min(step, steps) for step in denoising)
        self.step = max(self.step, min(steps, done // len(self.specs)))
        return self.step


def offer_of(info: ModelInfo, *, storage_url: str | None = None) -> Offer:
    """Return the offer that announces this model, and the fleet's store, to producers."""
    strengths, required = info.image_use.default_strengths, info.image_use.required
    # Producers before 0.2.0 know `strength` only, also of jobs that must have a mask.
    strength = strengths.mask if "mask_image" in required else strengths.image
    return Offer(
        model=info.name,
        digest=info.digest,
        shapes=tuple((shape.height, shape.width) for shape in info.shapes),
        schedulers=info.schedulers,
        max_num_inference_steps=info.max_num_inference_steps,
        num_inference_steps=info.default_num_inference_steps,
        guidance_scale=info.default_guidance_scale,
        scheduler=info.default_scheduler,
        max_clip_skip=info.max_clip_skip,
        rescales_guidance=info.rescales_guidance,
        prompt_chunks=info.prompt_chunks,
        loras=info.job_lora_digests,
        required_images=required,
        strength=strength,
        mask_strength=strengths.mask,
        image_guidance_scale=info.image_use.default_image_guidance_scale,
        splits_denoising=info.latents is not None,
        storage_url=storage_url,
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
    """Return the attempt at a job, with the defaults of the model filled in."""
    steps, guidance = request.num_inference_steps, request.guidance_scale
    image_guidance = request.image_guidance_scale
    if image_guidance is None:
        image_guidance = info.image_use.default_image_guidance_scale
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
            clip_skip=request.clip_skip,
            guidance_rescale=request.guidance_rescale or 0.0,
            prompt_weighting=request.prompt_weighting,
            denoising_end=request.denoising_end,
            loras=request.loras,
            image_guidance_scale=image_guidance,
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
        wants_preview=request.preview,
    )


def attempts_in(batch: Iterable[Slot]) -> list[Attempt]:
    """Return the attempts that have a slot in `batch`, each once, in order."""
    return [work for work in work_in(batch) if isinstance(work, Attempt)]
