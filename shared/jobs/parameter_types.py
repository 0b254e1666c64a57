"""Define the types of single job parameters, with their limits.

Input: one value. Output: the same value as a request keeps it, or an error that says the limit.
`shared.jobs.request` checks what parameters need of each other.
"""

from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictInt,
    StrictStr,
    ValidationInfo,
    WithJsonSchema,
)

from imagefleet.shared.jobs.addresses import (
    IMAGE_OBJECTS,
    LATENTS_OBJECTS,
    check_http_url,
    check_input_address,
)
from imagefleet.shared.jobs.caller_metadata import check_metadata
from imagefleet.shared.jobs.prompt_text import check_text
from imagefleet.shared.text.durations import parse_duration

MAX_PROMPT_CHARACTERS: Final = 4_000
MAX_SIDE_PIXELS: Final = 2_048
MAX_STEPS: Final = 1_000
MAX_GUIDANCE: Final = 50.0
MAX_CLIP_SKIP: Final = 64
"""No published text encoder has as many layers. A model's offer has its own limit."""
MAX_IMAGES: Final = 64
MAX_INPUT_BYTES: Final = 20_000_000
"""Bytes of the file of an `image`, a `mask_image` or a `control_image`."""
INPUT_FIELDS: Final = ("image", "mask_image", "latents", "control_image")
"""The parameters that name a file."""
MAX_SEED: Final = 2**32 - 1
MAX_TTL_S: Final = 31_536_000
"""A year."""
MAX_KEEP_S: Final = 10 * MAX_TTL_S
GIVEN_EMPTY: Final = " "
"""A request keeps this in the place of a negative prompt that is given but empty. SDXL encodes such
a one, and uses zeros if none is given."""
SIZE_MULTIPLE: Final = 8
"""The VAE scale factor of every Stable Diffusion. Sizes must be multiples of it."""

STORED: Final = {"stored": True}
"""Validation context of a request that an earlier or a later release accepted."""


def is_stored(info: ValidationInfo) -> bool:
    """Return whether an earlier or a later release accepted the request that is validated."""
    return info.context is not None


def _mark_as_given(text: object, info: ValidationInfo) -> object:
    if is_stored(info):  # and so marked already
        return text
    if text is None:
        return ""
    return GIVEN_EMPTY if text == "" else text


def _check_text(text: str, info: ValidationInfo) -> str:
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise ValueError(f"must be at most {MAX_PROMPT_CHARACTERS} characters")
    return check_text(text, stored=is_stored(info))


def _check_not_empty(prompt: str) -> str:
    if not prompt.strip():
        raise ValueError("must not be empty")
    return prompt


def _check_side(pixels: int) -> int:
    if not SIZE_MULTIPLE <= pixels <= MAX_SIDE_PIXELS:
        raise ValueError(f"must be between {SIZE_MULTIPLE} and {MAX_SIDE_PIXELS} pixels")
    if pixels % SIZE_MULTIPLE:
        raise ValueError(f"must be divisible by {SIZE_MULTIPLE}")
    return pixels


def _check_callback_url(url: str, info: ValidationInfo) -> str:
    return check_http_url(url, stored=is_stored(info))


def _check_image_address(address: str, info: ValidationInfo) -> str:
    return check_input_address(address, IMAGE_OBJECTS, stored=is_stored(info))


def _check_latents_address(address: str, info: ValidationInfo) -> str:
    return check_input_address(address, LATENTS_OBJECTS, stored=is_stored(info))


Prompt = Annotated[
    StrictStr,
    AfterValidator(_check_text),
    AfterValidator(_check_not_empty),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_PROMPT_CHARACTERS}),
]
NegativePrompt = Annotated[
    StrictStr,
    BeforeValidator(_mark_as_given),
    AfterValidator(_check_text),
    WithJsonSchema({"type": "string", "maxLength": MAX_PROMPT_CHARACTERS}),
]
"""A text that is given but empty becomes `GIVEN_EMPTY`."""
Side = Annotated[
    StrictInt,
    AfterValidator(_check_side),
    WithJsonSchema(
        {
            "type": "integer",
            "minimum": SIZE_MULTIPLE,
            "maximum": MAX_SIDE_PIXELS,
            "multipleOf": SIZE_MULTIPLE,
        }
    ),
]
"""Pixels."""
Steps = Annotated[StrictInt, Field(ge=1, le=MAX_STEPS)]
Guidance = Annotated[float, Field(ge=0.0, le=MAX_GUIDANCE, allow_inf_nan=False)]
TrueGuidance = Annotated[float, Field(ge=1.0, le=MAX_GUIDANCE, allow_inf_nan=False)]
"""A scale of guidance of which 1 is none."""
ClipSkip = Annotated[StrictInt, Field(ge=1, le=MAX_CLIP_SKIP)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Strength = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
ImageCount = Annotated[StrictInt, Field(ge=1, le=MAX_IMAGES)]
ImageIndex = Annotated[StrictInt, Field(ge=0, lt=MAX_IMAGES)]
"""Which of several images, from 0."""
Seed = Annotated[StrictInt, Field(ge=0, le=MAX_SEED)]
ImageAddress = Annotated[StrictStr, AfterValidator(_check_image_address)]
"""An http(s) address, or the key or URL of an object in the fleet's store."""
LatentsAddress = Annotated[StrictStr, AfterValidator(_check_latents_address)]
"""An address of latents, like that of an image."""
Priority = Annotated[StrictInt, Field(ge=0, le=9)]
"""Celery's priority on Redis: 0 is served first, 9 last. 0-2, 3-5, 6-8 and 9 are one level
each."""
CallbackUrl = Annotated[StrictStr, AfterValidator(_check_callback_url)]
Ttl = Annotated[float, Field(gt=0.0, le=MAX_TTL_S, allow_inf_nan=False)]
"""Seconds."""
Keep = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0.0, le=MAX_KEEP_S, allow_inf_nan=False),
    WithJsonSchema({"type": ["number", "string"], "exclusiveMinimum": 0, "maximum": MAX_KEEP_S}),
]
"""Seconds. A caller may also write a text, as in `30d`."""
CallerMetadata = Annotated[dict[str, Any], AfterValidator(check_metadata)]
