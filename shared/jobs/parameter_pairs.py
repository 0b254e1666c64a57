"""Check the parameters of a job that depend on each other.

Input: a request whose parameters are valid one by one. Output: an error if they contradict each
other.
"""

from typing import Protocol

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.prompt_weights import check_weights
from imagefleet.shared.jobs.split_denoising import SplitRequest, check_split


class PairedRequest(SplitRequest, Protocol):
    """The parameters of a job that are compared here."""

    @property
    def prompt_weighting(self) -> bool: ...
    @property
    def image_index(self) -> int | None: ...
    @property
    def num_images_per_prompt(self) -> int: ...
    @property
    def height(self) -> int | None: ...
    @property
    def width(self) -> int | None: ...


def check_together(request: PairedRequest) -> None:
    """Raise InvalidRequest or ValueError if parameters contradict each other."""
    for field in ("prompt", "negative_prompt"):
        check_weights(field, getattr(request, field), weighting=request.prompt_weighting)
    check_split(request)
    if request.image_index is not None and request.image_index >= request.num_images_per_prompt:
        limit = f"must be below num_images_per_prompt={request.num_images_per_prompt}"
        raise InvalidRequest("image_index", request.image_index, limit)
    if (request.height is None) != (request.width is None):
        raise ValueError("height and width must be given together, or neither")
