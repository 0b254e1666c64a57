"""Refuse what no worker would take, with field, value and limit. Asked at both doors."""

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.model import JobRequest
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL


def admit(request: JobRequest, offers: dict[str, Offer]) -> None:
    """Hold a valid request against what the fleet offers. Raises InvalidRequest.

    Before the first worker was ever ready there is nothing to hold it against: the job is accepted
    and the worker checks it.
    """
    if not offers:
        return
    offer = offers.get(request.model or DEFAULT_MODEL)
    if offer is None:
        known = ", ".join(sorted(offers.keys() - {DEFAULT_MODEL}))
        raise InvalidRequest("model", request.model, f"not served here; there is {known}")
    size = (request.height, request.width)
    if request.height is not None and size not in offer.shapes:
        shapes = ", ".join(f"{height}x{width}" for height, width in offer.shapes)
        raise InvalidRequest(
            "height x width",
            f"{request.height}x{request.width}",
            f"not a declared shape of {offer.model}; there is {shapes}",
        )
    if request.scheduler is not None and request.scheduler not in offer.schedulers:
        known = ", ".join(offer.schedulers)
        raise InvalidRequest("scheduler", request.scheduler, f"unknown; there is {known}")
    steps = request.num_inference_steps
    _admit_strength(request, steps or offer.num_inference_steps)
    if steps is not None and steps > offer.max_num_inference_steps:
        limit = f"must be at most {offer.max_num_inference_steps} with {offer.model}"
        raise InvalidRequest("num_inference_steps", steps, limit)


def _admit_strength(request: JobRequest, steps: int) -> None:
    """A picture to start from must leave at least one step to paint."""
    if request.steps_painted(steps) < 1:
        limit = f"leaves none of {steps} steps; raise it, or num_inference_steps"
        raise InvalidRequest("strength", request.share_painted, limit)
