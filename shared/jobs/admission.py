"""Admission: check a request against the offers, before it is accepted.

Producers check before they submit, and workers before they start a job that came from elsewhere.
"""

from collections.abc import Mapping
from typing import Any, Final

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.foreign_names import scheduler_called, scheduler_hint
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.parameter import Parameter
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS, is_used
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.text.printable import counted

_CHECKED: Final = {name: row for name, row in PARAMETERS.items() if row.offered_by or row.at_most}
"""The parameters that not every model has, or not with every value."""


def admit(
    request: JobRequest, offers: dict[str, Offer], *, images_come_later: bool = False
) -> None:
    """Check a valid request against the offers of the fleet.

    Without offers (no worker was ever ready) every request passes, and a worker checks it later.

    Args:
        images_come_later: the request stands for rows that may name images of their own.

    Raises:
        InvalidRequest: no worker offers this model, or the model does not offer the shape, the
            scheduler, a LoRA or another parameter (see `offered_by` and `at_most` in the table), or
            needs images that the request lacks.
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
        raise InvalidRequest("scheduler", request.scheduler, _not_offered(request.scheduler, offer))
    for name, _ in request.loras:
        _check_held("loras", name, "LoRA", offer.loras, offer)
    if request.controlnet is not None and offer.controlnets:
        _check_held("controlnet", request.controlnet, "ControlNet", offer.controlnets, offer)
    for name, row in _CHECKED.items():
        if is_used(name, value := getattr(request, name)):
            _check_offered(name, row, value, offer)
    _check_images(request, offer, images_come_later=images_come_later)
    steps = request.num_inference_steps or offer.num_inference_steps
    _check_denoised_steps(request, offer, steps)


def _check_held(field: str, name: str, kind: str, held: Mapping[str, str], offer: Offer) -> None:
    """Check that the workers hold a file that jobs choose by name."""
    if name not in held:
        known = ", ".join(sorted(held)) or "none"
        limit = f"is no {kind} that the workers of the model {offer.model} hold; they hold {known}"
        raise InvalidRequest(field, name, limit)


def _not_offered(scheduler: str, offer: Offer) -> str:
    """Return what is wrong with the name of a scheduler that the model does not offer."""
    called = scheduler_hint(scheduler)
    if called is not None and scheduler_called(scheduler) in offer.schedulers:
        return called
    known = ", ".join(offer.schedulers)
    wrong = f"is not offered by the model {offer.model}; it offers {known}"
    return wrong if called is None else f"{called}, and {wrong}"


def _check_offered(name: str, row: Parameter, value: Any, offer: Offer) -> None:
    """Check a parameter that is used against the fields of an offer that its row names."""
    most = getattr(offer, row.at_most) if row.at_most else None
    if (row.offered_by and not _is_offered(getattr(offer, row.offered_by))) or most == 0:
        raise InvalidRequest(name, value, row.not_offered.format(model=offer.model))
    if most is not None and value > most:
        limit = f"must be at most {most} with the model {offer.model}"
        raise InvalidRequest(name, value, limit)


def _is_offered(field: object) -> bool:
    """Return whether a field of an offer allows a parameter: a default, a flag or a number."""
    return isinstance(field, float) or bool(field)


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


def _check_denoised_steps(request: JobRequest, offer: Offer, steps: int) -> None:
    if request.denoised_steps(steps, offer.default_strengths) < 1:
        left = f"leaves none of {counted(steps, 'step')} to denoise"
        limit = f"{left}; raise it, or raise num_inference_steps"
        raise InvalidRequest("strength", request.denoised_share(offer.default_strengths), limit)
