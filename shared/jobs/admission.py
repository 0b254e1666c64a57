"""Admission: check a request against the offers, before it is accepted.

Producers check before they submit, and workers before they start a job that came from elsewhere.
"""

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.split_denoising import SPLIT_FIELDS
from imagefleet.shared.text.printable import counted


def admit(
    request: JobRequest, offers: dict[str, Offer], *, images_come_later: bool = False
) -> None:
    """Check a valid request against the offers of the fleet.

    Without offers (no worker was ever ready) every request passes, and a worker checks it later.

    Args:
        images_come_later: the request stands for rows that may name images of their own.

    Raises:
        InvalidRequest: no worker offers this model, shape, scheduler, LoRA, `clip_skip`,
            `guidance_rescale`, prompt weighting or number of steps, or the model needs images that
            the request lacks, or does not take one that it has.
    """
    if not offers:
        return
    offer = offers.get(request.model or DEFAULT_MODEL)
    if offer is None:
        known = ", ".join(sorted(offers.keys() - {DEFAULT_MODEL}))
        limit = f"no worker has offered this model; offered are {known}"
        raise InvalidRequest("model", request.model, limit)
    size = (request.height, request.width)
    if request.height is not None and size not in offer.shapes:
        shapes = ", ".join(f"{height}x{width}" for height, width in offer.shapes)
        raise InvalidRequest(
            "height x width",
            f"{request.height}x{request.width}",
            f"the model {offer.model} does not serve this shape; it serves {shapes}",
        )
    if request.scheduler is not None and request.scheduler not in offer.schedulers:
        known = ", ".join(offer.schedulers)
        limit = f"is not offered by the model {offer.model}; it offers {known}"
        raise InvalidRequest("scheduler", request.scheduler, limit)
    for name, _ in request.loras:
        if name not in offer.loras:
            known = ", ".join(sorted(offer.loras)) or "none"
            limit = (
                f"is no LoRA that the workers of the model {offer.model} hold; they hold {known}"
            )
            raise InvalidRequest("loras", name, limit)
    _check_clip_skip(request, offer)
    _check_guidance_rescale(request, offer)
    _check_prompt_weighting(request, offer)
    _check_split(request, offer)
    _check_images(request, offer, images_come_later=images_come_later)
    steps = request.num_inference_steps
    _check_denoised_steps(request, offer, steps or offer.num_inference_steps)
    if steps is not None and steps > offer.max_num_inference_steps:
        limit = f"must be at most {offer.max_num_inference_steps} with the model {offer.model}"
        raise InvalidRequest("num_inference_steps", steps, limit)


def _check_clip_skip(request: JobRequest, offer: Offer) -> None:
    layers, most = request.clip_skip, offer.max_clip_skip
    if layers is None or layers <= most:
        return
    if most:
        limit = f"must be at most {most} with the model {offer.model}"
    else:
        limit = f"is not a parameter of the model {offer.model}"
    raise InvalidRequest("clip_skip", layers, limit)


def _check_guidance_rescale(request: JobRequest, offer: Offer) -> None:
    if (rescale := request.guidance_rescale) and not offer.rescales_guidance:
        limit = f"is not a parameter of the model {offer.model}"
        raise InvalidRequest("guidance_rescale", rescale, limit)


def _check_prompt_weighting(request: JobRequest, offer: Offer) -> None:
    if request.prompt_weighting and not offer.prompt_chunks:
        limit = (
            "needs workers with IMAGEFLEET_PROMPT_CHUNKS of 1 or more; those of the model "
            f"{offer.model} have 0"
        )
        raise InvalidRequest("prompt_weighting", True, limit)


def _check_split(request: JobRequest, offer: Offer) -> None:
    if offer.splits_denoising:
        return
    for name in SPLIT_FIELDS:
        if (value := getattr(request, name)) is not None:
            raise InvalidRequest(name, value, f"is not a parameter of the model {offer.model}")


def _check_images(request: JobRequest, offer: Offer, *, images_come_later: bool) -> None:
    needed = " and ".join(offer.required_images)
    if offer.splits_denoising:
        needed += ", or latents"
    for name in offer.required_images:
        if name == "image" and request.latents is not None:
            continue
        if getattr(request, name) is None and not images_come_later:
            raise InvalidRequest(
                name, None, f"is missing; every job of the model {offer.model} needs {needed}"
            )
    for names, default in (
        (("mask_image", "strength"), offer.strength),
        (("image_guidance_scale",), offer.image_guidance_scale),
    ):
        for name in names:
            if default is None and (value := getattr(request, name)) is not None:
                raise InvalidRequest(name, value, f"is not a parameter of the model {offer.model}")


def _check_denoised_steps(request: JobRequest, offer: Offer, steps: int) -> None:
    if request.denoised_steps(steps, offer.default_strengths) < 1:
        left = f"leaves none of {counted(steps, 'step')} to denoise"
        limit = f"{left}; raise it, or raise num_inference_steps"
        raise InvalidRequest("strength", request.denoised_share(offer.default_strengths), limit)
