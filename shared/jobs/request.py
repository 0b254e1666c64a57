"""Validate the parameters of jobs.

Input: parameters, from a caller or a message. Output: a valid `JobRequest`, or an error that names
the field, its value and the limit. `shared.jobs.admission` checks whether the workers offer the
model, the shape and the scheduler.
"""

import json
import operator
import secrets
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.addresses import (
    IMAGE_OBJECTS,
    LATENTS_OBJECTS,
    check_http_url,
    check_input_address,
)
from imagefleet.shared.jobs.caller_metadata import check_metadata
from imagefleet.shared.jobs.default_strengths import STABLE_DIFFUSION, DefaultStrengths
from imagefleet.shared.jobs.lora_scales import LoraScales
from imagefleet.shared.jobs.model import CallbackEvent, ImageFormat, Model, QueueSafeName
from imagefleet.shared.jobs.prompt_text import check_text
from imagefleet.shared.jobs.prompt_weights import pieces_of
from imagefleet.shared.jobs.split_denoising import Share, check_split
from imagefleet.shared.text.durations import parse_duration

MAX_PROMPT_CHARACTERS: Final = 4_000
MAX_SIDE_PIXELS: Final = 2_048
MAX_STEPS: Final = 1_000
MAX_GUIDANCE: Final = 50.0
MAX_CLIP_SKIP: Final = 64
"""No published text encoder has as many layers. A model's offer has its own limit."""
MAX_IMAGES: Final = 64
MAX_INPUT_BYTES: Final = 20_000_000
"""Bytes of the file of an `image` or `mask_image`."""
MAX_SEED: Final = 2**32 - 1
MAX_TTL_S: Final = 31_536_000
"""A year."""
MAX_KEEP_S: Final = 10 * MAX_TTL_S
SIZE_MULTIPLE: Final = 8
"""The VAE scale factor of every Stable Diffusion. Sizes must be multiples of it."""

DEFAULT_CALLBACK_EVENTS: Final = (
    CallbackEvent.SUCCEEDED,
    CallbackEvent.FAILED,
    CallbackEvent.CANCELLED,
)


_STORED: Final = {"stored": True}
"""Validation context of a request that an earlier or a later release accepted."""


class JobRequest(Model):
    """A job request is one prompt with its parameters, in diffusers' names.

    `None` means the model's default. The worker fills it in and records it beside the image.
    """

    prompt: StrictStr
    negative_prompt: StrictStr = Field(default="", exclude_if=lambda text: not text)
    """Empty if none is given, and then not sent: SDXL uses zeros in its place. A text that is given
    but empty becomes a blank. Release 0.1.0 sent an empty text in both cases."""
    height: StrictInt | None = None
    width: StrictInt | None = None
    num_inference_steps: Annotated[StrictInt, Field(ge=1, le=MAX_STEPS)] | None = None
    guidance_scale: Annotated[float, Field(ge=0.0, le=MAX_GUIDANCE, allow_inf_nan=False)] | None = (
        None
    )
    clip_skip: Annotated[StrictInt, Field(ge=1, le=MAX_CLIP_SKIP)] | None = Field(
        default=None, exclude_if=lambda layers: layers is None
    )
    """The last layers of the text encoders that the prompt skips, as in diffusers. The negative
    prompt skips none."""
    guidance_rescale: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] | None = Field(
        default=None, exclude_if=operator.not_
    )
    """How far the guided output is scaled back to the deviation of the output with the prompt, as
    in diffusers (Lin et al. 2023, section 3.4). None or 0: not at all."""
    prompt_weighting: StrictBool = Field(default=False, exclude_if=operator.not_)
    """Whether brackets in the prompts weigh their words, and long prompts are read in chunks."""
    num_images_per_prompt: Annotated[StrictInt, Field(ge=1, le=MAX_IMAGES)] = 1
    seed: Annotated[StrictInt, Field(ge=0, le=MAX_SEED)] = Field(
        default_factory=lambda: secrets.randbits(32)
    )
    """If omitted, drawn at submission, so that every attempt generates the same image."""
    image: StrictStr | None = None
    """The init image: an http(s) address, or the key or URL of an object in the fleet's store."""
    latents: StrictStr | None = Field(default=None, exclude_if=lambda address: address is None)
    """Latents that a job with `denoising_end` has left, in the place of an init image. They are
    addressed like it."""
    denoising_start: Share | None = Field(default=None, exclude_if=lambda share: share is None)
    """The share of the steps that `latents` have behind them, as in diffusers."""
    denoising_end: Share | None = Field(default=None, exclude_if=lambda share: share is None)
    """The share of the steps after which the job ends, with latents as its result in the place of
    images, as in diffusers."""
    mask_image: StrictStr | None = None
    """Where `image` is generated anew (white) and where it is kept (black)."""
    strength: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] | None = None
    """How much of `image` is replaced: the share of the steps that is denoised."""
    image_guidance_scale: (
        Annotated[float, Field(ge=0.0, le=MAX_GUIDANCE, allow_inf_nan=False)] | None
    ) = Field(default=None, exclude_if=lambda scale: scale is None)
    """How closely a model that edits images (instruct-pix2pix) follows `image`. As in diffusers,
    there is no guidance below 1. A number is sent only if one is given: release 0.1.0 has none."""
    preview: StrictBool = False
    """Whether the status shows a preview, renewed every few seconds."""
    scheduler: QueueSafeName | None = None
    loras: LoraScales = Field(default=(), exclude_if=operator.not_)
    """LoRA that the image is generated with, of those that the workers hold, with their scales."""
    model: QueueSafeName | None = None
    format: ImageFormat = ImageFormat.PNG
    priority: Annotated[StrictInt, Field(ge=0, le=9)] = 3
    """Celery's priority on Redis: 0 is served first, 9 last. 0-2, 3-5, 6-8 and 9 are one level
    each."""
    tenant: QueueSafeName | None = None
    """On whose behalf the job runs. Tenants of one priority level share the devices by weight."""
    callback_url: StrictStr | None = None
    callback_events: tuple[CallbackEvent, ...] = DEFAULT_CALLBACK_EVENTS
    ttl: Annotated[float, Field(gt=0.0, le=MAX_TTL_S, allow_inf_nan=False)] | None = Field(
        default=None, exclude_if=operator.not_
    )
    """Seconds after its submission within which a worker must start the job, else it fails."""
    keep: (
        Annotated[
            float,
            BeforeValidator(parse_duration),
            Field(gt=0.0, le=MAX_KEEP_S, allow_inf_nan=False),
        ]
        | None
    ) = Field(default=None, exclude_if=operator.not_)
    """Seconds after the job's success at which its images are deleted. None: as the worker is set;
    unless the operator has chosen otherwise, never."""
    metadata: Annotated[dict[str, Any], AfterValidator(check_metadata)] = Field(
        default_factory=dict, exclude_if=operator.not_
    )
    """The caller's own, as JSON. It is in the status, in callbacks and beside the image."""

    @field_validator("negative_prompt", mode="before")
    @classmethod
    def _mark_as_given(cls, text: object, info: ValidationInfo) -> object:
        if info.context is not None:  # stored, and so marked already
            return text
        if text is None:
            return ""
        return " " if text == "" else text

    @field_validator("prompt", "negative_prompt")
    @classmethod
    def _check_text(cls, text: str, info: ValidationInfo) -> str:
        if len(text) > MAX_PROMPT_CHARACTERS:
            raise ValueError(f"must be at most {MAX_PROMPT_CHARACTERS} characters")
        return check_text(text, stored=info.context is not None)

    @field_validator("prompt")
    @classmethod
    def _check_not_empty(cls, prompt: str) -> str:
        if not prompt.strip():
            raise ValueError("must not be empty")
        return prompt

    @field_validator("height", "width")
    @classmethod
    def _check_side(cls, pixels: int | None) -> int | None:
        if pixels is None:
            return None
        if not SIZE_MULTIPLE <= pixels <= MAX_SIDE_PIXELS:
            raise ValueError(f"must be between {SIZE_MULTIPLE} and {MAX_SIDE_PIXELS} pixels")
        if pixels % SIZE_MULTIPLE:
            raise ValueError(f"must be divisible by {SIZE_MULTIPLE}")
        return pixels

    @field_validator("callback_url")
    @classmethod
    def _check_callback_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        return None if url is None else check_http_url(url, stored=info.context is not None)

    @field_validator("image", "mask_image", "latents")
    @classmethod
    def _check_input_address(cls, address: str | None, info: ValidationInfo) -> str | None:
        if address is None:
            return None
        objects = LATENTS_OBJECTS if info.field_name == "latents" else IMAGE_OBJECTS
        return check_input_address(address, objects, stored=info.context is not None)

    @model_validator(mode="after")
    def _check_image_is_given(self) -> Self:
        for field in ("mask_image", "strength", "image_guidance_scale"):
            if getattr(self, field) is not None and self.image is None:
                raise InvalidRequest(field, getattr(self, field), "needs an image")
        return self

    @model_validator(mode="after")
    def _check_prompt_weights(self) -> Self:
        for field in ("prompt", "negative_prompt"):
            try:
                pieces_of(getattr(self, field), weighting=self.prompt_weighting)
            except ValueError as error:
                raise InvalidRequest(field, getattr(self, field), str(error)) from None
        return self

    @model_validator(mode="after")
    def _check_split(self) -> Self:
        check_split(self)
        return self

    @model_validator(mode="after")
    def _check_both_sides_are_given(self) -> Self:
        if (self.height is None) != (self.width is None):
            raise ValueError("height and width must be given together, or neither")
        return self

    def denoised_share(self, defaults: DefaultStrengths = STABLE_DIFFUSION) -> float:
        """Return the share of its steps that is denoised, were there no `denoising_end`.

        It is `strength` with an init image, the rest with latents, else 1.

        Args:
            defaults: The model's.
        """
        if self.denoising_start is not None:
            return 1 - self.denoising_start
        default = defaults.image if self.mask_image is None else defaults.mask
        if self.image is None or default is None:
            return 1.0
        return default if self.strength is None else self.strength

    def denoised_steps(self, steps: int, defaults: DefaultStrengths = STABLE_DIFFUSION) -> int:
        """Return how many of `steps` are denoised.

        With `denoising_start` or `denoising_end` it is an estimate: the model's timesteps decide.
        """
        share = self.denoised_share(defaults)
        end = 1.0 if self.denoising_end is None else self.denoising_end
        if self.denoising_start is None and (end == 1 or int(steps * share) < 1):
            return int(steps * share)
        return max(1, round(steps * (share - 1 + end)))

    @classmethod
    def parse(cls, parameters: dict[str, Any], *, stored: bool = False) -> Self:
        """Validate `parameters`.

        Args:
            stored: a producer of another release may have accepted them. Unknown fields are
                ignored.

        Raises:
            InvalidRequest: names the first field that is unknown, else the first that is wrong.
        """
        try:
            if stored:
                return cls.model_validate(parameters, extra="ignore", context=_STORED)
            return cls.model_validate(parameters)
        except ValidationError as error:
            raise _invalid_request(error, parameters) from None

    @classmethod
    def parse_stored(cls, text: str) -> Self:
        """Read the request of a job's record. Unknown fields are ignored.

        Raises:
            ValueError: `text` is not a JSON object.
            InvalidRequest: a field is wrong.
        """
        parameters = json.loads(text)
        if not isinstance(parameters, dict):
            raise ValueError("the request is not a JSON object")
        return cls.parse(parameters, stored=True)


def _invalid_request(error: ValidationError, parameters: dict[str, Any]) -> InvalidRequest:
    errors = error.errors(include_url=False)
    # A misspelled name comes before the parameter that is missing because of it.
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    field = str(first["loc"][0]) if first["loc"] else "height"
    if first["type"] == "extra_forbidden":
        known = ", ".join(JobRequest.model_fields)
        limit = f"is not a parameter of a job; the parameters are {known}"
        return InvalidRequest(field, parameters.get(field), limit)
    limit = first["msg"].removeprefix("Value error, ")
    limit = limit[0].lower() + limit[1:]
    return InvalidRequest(field, parameters.get(field), limit.replace("input should", "must"))
