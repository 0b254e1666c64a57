"""Hold the rows of the parameters of ControlNets, and check them against each other.

`shared.jobs.request` has their fields. The names are those of diffusers' pipelines, except for
`controlnet`, which is an argument of the pipeline there.
"""

from typing import Annotated, Final, Protocol

from pydantic import Field

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.model import QueueSafeName
from imagefleet.shared.jobs.parameter import Parameter
from imagefleet.shared.jobs.parameter_types import Fraction, ImageAddress

MAX_CONTROL_SCALE: Final = 10.0
_NO_DEFAULT_WITH_IMAGE: Final = ("strength", "controlnet_conditioning_scale")

Net = Annotated[
    QueueSafeName | None,
    Parameter(
        "The name of a ControlNet that the workers hold; it steers the image by `control_image`.",
        since=10,
        rows_since=9,
        listed_as="controlnets",
        needs="control_image",
        offered_by="controlnets",
        not_offered="needs workers with IMAGEFLEET_CONTROLNET; those of the model {model} hold no "
        "ControlNet",
        metadata="if used",
    ),
]
ControlImage = Annotated[
    ImageAddress | None,
    Parameter(
        "The image by which `controlnet` steers: edges, depths or poses; it is resized.",
        help="Control image, given like an init image: edges, depths or poses.",
        given_as="ImageInput",
        since=10,
        rows_since=9,
        needs="controlnet",
        metadata="apart",
    ),
]
Scale = Annotated[
    Annotated[float, Field(ge=0.0, le=MAX_CONTROL_SCALE, allow_inf_nan=False)] | None,
    Parameter(
        "0 to 10, by default 1: it says how strongly `controlnet` steers.",
        since=10,
        rows_since=9,
        needs="controlnet",
        metadata="if used",
    ),
]
Start = Annotated[
    Fraction | None,
    Parameter(
        "0 to 1, by default 0: `controlnet` begins after this share of the steps.",
        since=10,
        rows_since=9,
        needs="controlnet",
        metadata="if used",
    ),
]
End = Annotated[
    Fraction | None,
    Parameter(
        "0 to 1, by default 1: `controlnet` ends after this share of the steps.",
        since=10,
        rows_since=9,
        needs="controlnet",
        metadata="if used",
    ),
]


class ControlRequest(Protocol):
    """It has the parameters of a job that are compared here."""

    @property
    def controlnet(self) -> str | None: ...
    @property
    def control_image(self) -> str | None: ...
    @property
    def control_guidance_start(self) -> float | None: ...
    @property
    def control_guidance_end(self) -> float | None: ...
    @property
    def image(self) -> str | None: ...
    @property
    def mask_image(self) -> str | None: ...
    @property
    def strength(self) -> float | None: ...
    @property
    def controlnet_conditioning_scale(self) -> float | None: ...
    @property
    def latents(self) -> str | None: ...


def check_control(request: ControlRequest) -> None:
    """Raise InvalidRequest if the parameters contradict each other."""
    if request.controlnet is None:
        return
    for other in ("latents", "mask_image"):
        if getattr(request, other) is not None:
            raise InvalidRequest(other, getattr(request, other), "cannot be used with controlnet")
    for name in _NO_DEFAULT_WITH_IMAGE if request.image is not None else ():
        if getattr(request, name) is None:
            limit = "is missing; a job with controlnet and image must have it, because the defaults"
            raise InvalidRequest(name, None, f"{limit} of diffusers' pipelines differ")
    start, end = request.control_guidance_start or 0.0, request.control_guidance_end
    end = 1.0 if end is None else end
    if start >= end:
        raise InvalidRequest(
            "control_guidance_start", start, f"must be below control_guidance_end={end:g}"
        )
