"""Validate the parameters of jobs, and hold the table of them.

Input: parameters, from a caller or a message. Output: a valid `JobRequest`, or an error that names
the field, its value and the limit. `shared.jobs.admission` checks whether the workers offer what is
asked for.
"""

import json
import secrets
from typing import Annotated, Any, Final, Self

from pydantic import Field, StrictBool, ValidationError, model_validator

from imagefleet.shared.jobs import control_parameters as control
from imagefleet.shared.jobs.arguments import plain_value
from imagefleet.shared.jobs.default_strengths import STABLE_DIFFUSION, DefaultStrengths
from imagefleet.shared.jobs.guidance_parameters import (
    CfgNormalization,
    CfgTruncation,
    GuidanceRescale,
    GuidanceScale,
    TrueCfgScale,
)
from imagefleet.shared.jobs.lora_scales import LoraScales
from imagefleet.shared.jobs.model import CallbackEvent, ImageFormat, Model, QueueSafeName
from imagefleet.shared.jobs.parameter import Parameter, check_needs, is_false, is_none, is_whole
from imagefleet.shared.jobs.parameter_pairs import check_together
from imagefleet.shared.jobs.parameter_types import (
    STORED,
    CallbackUrl,
    CallerMetadata,
    ClipSkip,
    Guidance,
    ImageAddress,
    ImageCount,
    ImageIndex,
    Keep,
    LatentsAddress,
    NegativePrompt,
    Priority,
    Prompt,
    Seed,
    Side,
    Steps,
    Strength,
    Ttl,
)
from imagefleet.shared.jobs.prediction_address import PredictionAddressText
from imagefleet.shared.jobs.request_errors import invalid_request
from imagefleet.shared.jobs.split_denoising import Share

DEFAULT_CALLBACK_EVENTS: Final = (
    CallbackEvent.SUCCEEDED,
    CallbackEvent.FAILED,
    CallbackEvent.CANCELLED,
)


class JobRequest(Model):
    """A job request is one prompt with its parameters, in diffusers' names.

    The fields are the table of parameters: each has its type, its default and its row in one place.
    `None` means the model's default. The worker fills it in and records it beside the image.
    """

    prompt: Annotated[Prompt, Parameter("The text to generate an image from.", metadata="always")]
    negative_prompt: Annotated[
        NegativePrompt,
        Parameter(
            "What the image should not show, at most 4,000 characters; by default nothing.",
            rows_since=1,
            metadata="always",
        ),
    ] = Field(default="", exclude_if=is_false)
    """Empty if none is given, and then not sent: SDXL uses zeros in its place. Release 0.1.0 sent
    an empty text in both cases."""
    height: Annotated[
        Side | None,
        Parameter(
            "Pixels, a multiple of 8, with `width` a shape that a worker declared; by default the "
            "model's."
        ),
    ] = None
    width: Annotated[Side | None, Parameter("Pixels; with `height` or not at all.")] = None
    num_inference_steps: Annotated[
        Steps | None,
        Parameter(
            "Denoising steps, from 1 to the fleet's limit (often 100); by default the model's.",
            rows_since=1,
            at_most="max_num_inference_steps",
            metadata="always",
        ),
    ] = None
    guidance_scale: GuidanceScale = None
    clip_skip: Annotated[
        ClipSkip | None,
        Parameter(
            "Last layers of the text encoders that the prompt skips, 1 or more; by default none.",
            since=3,
            rows_since=3,
            counted_as="clip_skips",
            at_most="max_clip_skip",
            metadata="if used",
        ),
    ] = Field(default=None, exclude_if=is_none)
    """As in diffusers, the negative prompt skips none."""
    guidance_rescale: GuidanceRescale = Field(default=None, exclude_if=is_false)
    cfg_normalization: CfgNormalization = Field(default=None, exclude_if=is_false)
    cfg_truncation: CfgTruncation = Field(default=None, exclude_if=is_whole)
    true_cfg_scale: TrueCfgScale = Field(default=None, exclude_if=is_whole)
    prompt_weighting: Annotated[
        StrictBool,
        Parameter(
            "Whether brackets weigh words, and long prompts are read in chunks; by default not.",
            help="Weigh words by brackets, as in (blue:1.3), and read long prompts in chunks.",
            since=5,
            rows_since=4,
            counted_as="weighted_prompts",
            offered_by="prompt_chunks",
            not_offered="needs workers with IMAGEFLEET_PROMPT_CHUNKS of 1 or more; those of the "
            "model {model} have 0",
            metadata="if used",
        ),
    ] = Field(default=False, exclude_if=is_false)
    num_images_per_prompt: Annotated[
        ImageCount,
        Parameter("Images of the prompt, 1 to 64, by default 1.", rows_since=1, metadata="if used"),
    ] = 1
    image_index: Annotated[
        ImageIndex | None,
        Parameter(
            "Make only this image, from 0, of those of `num_images_per_prompt`; by default all.",
            since=7,
            rows_since=7,
            counted_as="single_images",
            metadata="of each image",
        ),
    ] = Field(default=None, exclude_if=is_none)
    seed: Annotated[
        Seed,
        Parameter(
            "0 to 2³² - 1; by default drawn at random.",
            help="0 to 2³² - 1; by default drawn at random, and kept in the job's record.",
            metadata="always",
        ),
    ] = Field(default_factory=lambda: secrets.randbits(32))
    """If omitted, drawn at submission, so that every attempt generates the same image."""
    image: Annotated[
        ImageAddress | None,
        Parameter(
            "The image to start from: PNG, JPEG or WebP of at most 20 MB.",
            help="Init image: a path that begins with /, ./, ../ or ~, an http(s) address, or a "
            "key of the fleet's store.",
            given_as="ImageInput",
            rows_since=2,
            counted_as="input_images",
            offered_by="takes_image",
            metadata="apart",
        ),
    ] = None
    latents: Annotated[
        LatentsAddress | None,
        Parameter(
            "What a job with `denoising_end` left: key, URL, path or content of a safetensors "
            "file.",
            help="Latents of a job with `denoising_end`, given like an image.",
            given_as="str | PathLike[str] | bytes",
            since=4,
            rows_since=6,
            counted_as="input_latents",
            offered_by="splits_denoising",
            metadata="apart",
        ),
    ] = Field(default=None, exclude_if=is_none)
    """They take the place of an init image."""
    denoising_start: Annotated[
        Share | None,
        Parameter(
            "The share of the steps that `latents` have behind them, between 0 and 1.",
            since=4,
            rows_since=6,
            needs="latents",
            offered_by="splits_denoising",
            metadata="apart",
        ),
    ] = Field(default=None, exclude_if=is_none)
    denoising_end: Annotated[
        Share | None,
        Parameter(
            "The share of the steps after which the job ends with latents, between 0 and 1.",
            since=4,
            offered_by="splits_denoising",
            metadata="apart",
        ),
    ] = Field(default=None, exclude_if=is_none)
    """The latents are the job's result in the place of images."""
    mask_image: Annotated[
        ImageAddress | None,
        Parameter(
            "Where `image` is generated anew (white) and where it is kept (black).",
            help="Mask of the init image, given like it: white is replaced, black is kept.",
            given_as="ImageInput",
            rows_since=2,
            needs="image",
            offered_by="strength",
            metadata="apart",
        ),
    ] = None
    strength: Annotated[
        Strength | None,
        Parameter(
            "The share of the steps that is denoised from `image` on, above 0 and at most 1.",
            help="How much of the init image is replaced: above 0, up to 1.",
            rows_since=2,
            needs="image",
            offered_by="strength",
            metadata="apart",
        ),
    ] = None
    image_guidance_scale: Annotated[
        Guidance | None,
        Parameter(
            "0 to 50: how closely a model that edits images follows `image`; only of such models.",
            rows_since=2,
            needs="image",
            offered_by="image_guidance_scale",
            metadata="apart",
        ),
    ] = Field(default=None, exclude_if=is_none)
    """As in diffusers (instruct-pix2pix), there is no guidance below 1. Release 0.1.0 has no such
    field, so it is sent only if it is given."""
    controlnet: control.Net = Field(default=None, exclude_if=is_none)
    control_image: control.ControlImage = Field(default=None, exclude_if=is_none)
    controlnet_conditioning_scale: control.Scale = Field(default=None, exclude_if=is_whole)
    control_guidance_start: control.Start = Field(default=None, exclude_if=is_false)
    control_guidance_end: control.End = Field(default=None, exclude_if=is_whole)
    preview: Annotated[
        StrictBool,
        Parameter(
            "Whether the status shows a preview while the job runs; by default not.",
            help="Keep a preview in the job's status while it runs.",
        ),
    ] = False
    scheduler: Annotated[
        QueueSafeName | None,
        Parameter(
            "One of `Client.offers()[…].schedulers`; by default the model's.",
            help="One that the workers offer; by default the model's.",
            rows_since=1,
            metadata="always",
        ),
    ] = None
    loras: Annotated[
        LoraScales,
        Parameter(
            'Names of LoRA that the workers hold, with scales: `[("style", 0.8)]` or '
            '`"style:0.8"`.',
            help="LoRA that the workers hold, and its scale (default 1); repeat the option for "
            "more.",
            flag="--lora",
            given_as="Sequence[tuple[str, float]] | str",
            since=2,
            rows_since=2,
            listed_as="loras",
            metadata="apart",
        ),
    ] = Field(default=(), exclude_if=is_false)
    model: Annotated[
        QueueSafeName | None,
        Parameter("A model that workers serve; by default the fleet's default model."),
    ] = None
    format: Annotated[
        ImageFormat,
        Parameter("`png` (the default), `webp` or `jpeg`.", given_as="ImageFormat | str"),
    ] = ImageFormat.PNG
    priority: Annotated[Priority, Parameter("0 (first) to 9 (last), by default 3.")] = 3
    tenant: Annotated[
        QueueSafeName | None,
        Parameter(
            "On whose behalf the job runs; by default the client's tenant.",
            help="Tenant of the jobs; tenants take turns.",
        ),
    ] = None
    """Tenants of one priority level share the devices by weight."""
    callback_url: Annotated[
        CallbackUrl | None,
        Parameter("The http(s) URL that receives a signed webhook for each of `callback_events`."),
    ] = None
    callback_events: Annotated[
        tuple[CallbackEvent, ...],
        Parameter(
            "By default `succeeded`, `failed` and `cancelled`.",
            help="Event to report; repeat the option for more. By default succeeded, failed and "
            "cancelled.",
            flag="--callback-event",
            given_as="Sequence[CallbackEvent | str]",
        ),
    ] = DEFAULT_CALLBACK_EVENTS
    callback_prediction: Annotated[
        PredictionAddressText | None,
        Parameter(
            "The prediction of an HTTP gateway that callbacks show; by default they show the job.",
            since=8,
        ),
    ] = Field(default=None, exclude_if=is_none)
    ttl: Annotated[
        Ttl | None,
        Parameter(
            "Seconds within which a worker must start the job, else it fails; by default for ever."
        ),
    ] = Field(default=None, exclude_if=is_false)
    keep: Annotated[
        Keep | None,
        Parameter(
            'How long images are kept after the job\'s success, as in `"30d"`, or in seconds.',
            help="How long the images are kept after the job's success, as in 12h or 30d. Default: "
            "as the workers are set; for ever unless the operator chose otherwise.",
            given_as="str | float",
        ),
    ] = Field(default=None, exclude_if=is_false)
    metadata: Annotated[
        CallerMetadata,
        Parameter(
            "Your own, as JSON: in the status, in callbacks and beside the image.",
            help="Your own data as a JSON object, kept in the status, in callbacks and beside the "
            "image.",
            given_as="Mapping[str, Any]",
        ),
    ] = Field(default_factory=dict, exclude_if=is_false)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        check_needs(self)
        check_together(self)
        control.check_control(self)
        return self

    @property
    def images(self) -> range:
        """The indices of the images that the job makes."""
        index = self.image_index
        return range(self.num_images_per_prompt) if index is None else range(index, index + 1)

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
        share, end = self.denoised_share(defaults), self.denoising_end or 1.0
        whole = defaults.steps_left(steps, share)
        if self.denoising_start is None and (end == 1 or whole < 1):
            return whole
        return max(1, round(steps * (share - 1 + end)))

    @classmethod
    def parse(cls, parameters: dict[str, Any], *, stored: bool = False) -> Self:
        """Validate `parameters`.

        Args:
            stored: another release may have accepted them. Unknown fields are ignored.

        Raises:
            InvalidRequest: names the first field that is unknown, else the first that is wrong.
        """
        try:
            if stored:
                return cls.model_validate(parameters, extra="ignore", context=STORED)
            return cls.model_validate({name: plain_value(parameters[name]) for name in parameters})
        except ValidationError as error:
            raise invalid_request(error, parameters, cls.model_fields) from None

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
