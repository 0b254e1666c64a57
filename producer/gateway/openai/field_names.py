"""Name the fields of OpenAI's Images API in errors about the parameters of a job.

A caller that sent `size` reads of `size`, with the width first, and not of `height x width`.
"""

from collections.abc import Mapping
from typing import Any, Final

from imagefleet.producer.gateway.problems import Problem, wrong_field, wrong_parameter
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.offers import Offer

SHAPE: Final = "height x width"
"""Errors about a shape that a model does not serve name this field."""
_THEIR_NAMES: Final = {
    "num_images_per_prompt": "n",
    "format": "output_format",
    "mask_image": "mask",
}
"""Parameters of a job that have other names in OpenAI's API."""


def in_openai_names(
    error: InvalidRequest, fields: Mapping[str, Any], offer: Offer | None
) -> Problem:
    """Return the problem of a wrong parameter, by the name that the request has for it.

    Args:
        fields: those of the request.
        offer: of the model that was asked for; None: there is none.
    """
    if error.field in (SHAPE, "height", "width") and (size := fields.get("size")) is not None:
        return wrong_field("size", size, _limit_of_size(error, offer))
    names = {ours: name for ours, name in _THEIR_NAMES.items() if fields.get(name) is not None}
    return wrong_parameter(error, names, fields)


def width_first(shape: str) -> str:
    """Return `64x96`, height before width, as `96x64`."""
    height, _, width = shape.partition("x")
    return f"{width}x{height}"


def _limit_of_size(error: InvalidRequest, offer: Offer | None) -> str:
    if error.field != SHAPE:
        return f"its {error.field} {error.limit}"
    if offer is None:
        return "no worker makes this size"
    sizes = ", ".join(f"{width}x{height}" for height, width in offer.shapes)
    return f"the model {offer.model} does not make this size; it makes {sizes}"
