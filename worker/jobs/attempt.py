"""One worker's attempt at one job: work for the devices that has a record and a claim.

It uses the terms of the engine and of the job. It depends on neither Celery nor Redis nor JAX.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Final

from imagefleet.shared.jobs.failed_attempts import FailedAttempt
from imagefleet.shared.jobs.image_expiry import KeepTime
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.worker_names import worker_of
from imagefleet.worker.devices.slots import Slot, Work, work_in
from imagefleet.worker.engine.contract.interface import ImageSpec, ModelInfo, Shape
from imagefleet.worker.engine.contract.sampling import Sampling

_SHARED_FIELDS: Final = tuple(
    field.name for field in fields(Sampling) if PARAMETERS[field.name].metadata != "of each image"
)
"""Fields of `Sampling` that all images of a job share."""
_OFFERED_AS_ANNOUNCED: Final = tuple(
    field.name
    for field in fields(ModelInfo)
    if field.name in Offer.model_fields and field.name not in ("shapes", "loras")
)
"""Fields of an offer that have the name and the value of those of `ModelInfo`."""


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
    failures: tuple[FailedAttempt, ...] = ()
    """Attempts that failed before, as in the record."""
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

    @property
    def name(self) -> str:
        """The id of the job."""
        return self.job_id

    @property
    def worker(self) -> str:
        """The worker that makes the attempt."""
        return worker_of(self.token)

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
    same_names = {name: getattr(info, name) for name in _OFFERED_AS_ANNOUNCED}
    return Offer(
        **same_names,
        model=info.name,
        shapes=tuple((shape.height, shape.width) for shape in info.shapes),
        num_inference_steps=info.default_num_inference_steps,
        guidance_scale=info.default_guidance_scale,
        scheduler=info.default_scheduler,
        loras=info.job_lora_digests,
        takes_image=info.image_use.takes_image,
        required_images=required,
        # Producers before 0.2.0 know `strength` only, also of jobs that must have a mask.
        strength=strengths.mask if "mask_image" in required else strengths.image,
        mask_strength=strengths.mask,
        rounds_steps_up=strengths.rounds_up,
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
    shape = info.shapes[0]
    if request.height is not None and request.width is not None:
        shape = Shape(height=request.height, width=request.width)
    values = sampling_values(request, info)
    specs = tuple(ImageSpec(**values, image_index=index) for index in request.images)
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


def sampling_values(request: JobRequest, info: ModelInfo) -> dict[str, Any]:
    """Return the fields of `Sampling` that all images of a job share.

    A parameter that is not given has the model's default, the field `default_<name>` of its
    `ModelInfo` or `ImageUse`, or else that of `Sampling`.
    """
    values = {}
    for name in _SHARED_FIELDS:
        value = getattr(request, name)
        for defaults in (info, info.image_use):
            if value is None:
                value = getattr(defaults, f"default_{name}", None)
        if value is not None:
            values[name] = value
    return values


def attempts_in(batch: Iterable[Slot]) -> list[Attempt]:
    """Return the attempts that have a slot in `batch`, each once, in order."""
    return [work for work in work_in(batch) if isinstance(work, Attempt)]
