"""Check the parameters of jobs that share the steps of one image, `denoising_end` and
`denoising_start` of diffusers.

Input: a request. Output: an error if its parameters contradict each other. `shared.jobs.admission`
checks whether the model splits denoising.
"""

from typing import Annotated, Protocol

from pydantic import Field

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.model import ImageFormat

Share = Annotated[float, Field(gt=0.0, lt=1.0, allow_inf_nan=False)]
"""A share of the steps is above none and below all."""


class SplitRequest(Protocol):
    """The parameters of a job that are compared here."""

    @property
    def latents(self) -> str | None: ...
    @property
    def denoising_start(self) -> float | None: ...
    @property
    def denoising_end(self) -> float | None: ...
    @property
    def image(self) -> str | None: ...
    @property
    def mask_image(self) -> str | None: ...
    @property
    def format(self) -> ImageFormat: ...


def check_split(request: SplitRequest) -> None:
    """Raise InvalidRequest if the parameters contradict each other."""
    start, end = request.denoising_start, request.denoising_end
    if request.latents is not None and start is None:
        raise InvalidRequest("latents", request.latents, "needs denoising_start")
    if request.latents is not None and request.image is not None:
        raise InvalidRequest("latents", request.latents, "takes the place of image; leave one out")
    if end is None:
        return
    if start is not None and end <= start:
        raise InvalidRequest("denoising_end", end, f"must be above denoising_start={start:g}")
    if request.mask_image is not None:
        raise InvalidRequest("denoising_end", end, "cannot be used with mask_image")
    if request.format != ImageFormat.PNG:
        limit = "has no effect with denoising_end, which makes a safetensors file; leave it out"
        raise InvalidRequest("format", request.format.value, limit)
