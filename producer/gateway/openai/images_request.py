"""Turn a request of the OpenAI Images API into the parameters of a job.

https://github.com/openai/openai-openapi, `CreateImageRequest` and `CreateImageEditRequest`. Beside
their fields, a request may have any parameter of a job, in diffusers' names; without a field for it
the clients of OpenAI send such keys by `extra_body`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.producer.gateway.web.bodies import check_fields
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS
from imagefleet.shared.jobs.parameter_types import MAX_IMAGES
from imagefleet.shared.jobs.request_errors import why_unknown

_SIZE: Final = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
_MAX_PARTIAL_IMAGES: Final = 3


class ImagesRequest(BaseModel):
    """A request has these fields of the OpenAI Images API. Others are parameters of a job."""

    model_config = ConfigDict(extra="allow")

    prompt: str = Field(description="The text to generate an image from.")
    model: str | None = Field(
        default=None, description="A model of `GET /v1/models`; by default the fleet's."
    )
    n: Annotated[int, Field(ge=1, le=MAX_IMAGES)] | None = Field(
        default=None, description="Images of the prompt; by default 1."
    )
    size: str | None = Field(
        default=None,
        description="Width and height in pixels, as in 512x512; `auto` and none stand for the "
        "model's.",
    )
    response_format: Literal["b64_json", "url"] | None = Field(
        default=None, description="By default `b64_json`. A `url` is one of the gateway."
    )
    output_format: Literal["png", "jpeg", "webp"] | None = Field(
        default=None, description="By default `png`."
    )
    background: Literal["opaque", "auto", "transparent"] | None = Field(
        default=None, description="`transparent` is refused: the models make no such images."
    )
    stream: bool | None = Field(default=None, description="Answer with server-sent events.")
    partial_images: Annotated[int, Field(ge=0, le=_MAX_PARTIAL_IMAGES)] | None = Field(
        default=None, description="Previews that a stream sends at most."
    )
    quality: Any = Field(default=None, description="Ignored, as the next five.")
    style: Any = None
    moderation: Any = None
    user: Any = None
    input_fidelity: Any = None
    output_compression: Any = None

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Check the fields of a request. A misspelled parameter would be another image.

        Raises Problem.
        """
        request = check_fields(cls, fields)
        for name, value in (request.model_extra or {}).items():
            if value is not None and name not in _PARAMETERS:
                raise wrong_field(name, value, why_unknown(name, _KNOWN))
        if request.background == "transparent":
            limit = "is not possible, because the models make no transparent images; leave it out"
            raise wrong_field("background", request.background, limit)
        return request

    def parameters(self, aliases: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of the job.

        Args:
            aliases: other names of models.

        Raises Problem.
        """
        given = {name: each for name, each in (self.model_extra or {}).items() if each is not None}
        own = {
            "prompt": self.prompt,
            "model": None if self.model is None else aliases.get(self.model, self.model),
            "num_images_per_prompt": self.n,
            "format": self.output_format,
            **self._size(),
        }
        for name, value in own.items():
            if value is not None and given.setdefault(name, value) != value:
                raise wrong_field(name, given[name], f"differs from {value!r}, which is asked for")
        if self.stream and self.partial_images:
            given["preview"] = True
        return given

    def _size(self) -> dict[str, int]:
        if self.size in (None, "", "auto"):
            return {}
        found = _SIZE.fullmatch(self.size or "")
        if found is None:
            limit = "must be WIDTHxHEIGHT in pixels, as in 512x512, or auto"
            raise wrong_field("size", self.size, limit)
        return {"width": int(found[1]), "height": int(found[2])}


_PARAMETERS: Final = frozenset({*PARAMETERS, "id"})
"""What is wrong with these is checked later, as of an `id`, which the gateway chooses."""
_KNOWN: Final = tuple(
    dict.fromkeys(
        name for name in (*ImagesRequest.model_fields, *PARAMETERS) if name != "callback_prediction"
    )
)
"""A request may have these fields. The gateway alone sets `callback_prediction`."""
