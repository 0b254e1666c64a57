"""The words both sides speak: what a job is, which states it passes, what comes back.

A *job* is one prompt with its parameters. An *attempt* is one worker's try at it. An *image* is one
picture of a job (`num_images_per_prompt` of them), a *step* one denoising step.
This page knows nothing of Redis, Celery, storage or devices.
"""

import hashlib
import re
import secrets
import uuid
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    field_validator,
    model_validator,
)

from imagefleet.shared.errors import InvalidRequest, MessageRejected

MESSAGE_VERSION: Final = 1
"""Raised when a worker of the version before could not read a job correctly."""

MAX_PROMPT_CHARACTERS: Final = 4_000
MAX_PIXELS_A_SIDE: Final = 2_048
MAX_STEPS: Final = 1_000
MAX_GUIDANCE: Final = 50.0
MAX_IMAGES: Final = 64
MAX_ADDRESS_CHARACTERS: Final = 2_048
DEFAULT_STRENGTH: Final = 0.8
"""diffusers' own."""
MAX_SEED: Final = 2**32 - 1
SIZE_MULTIPLE: Final = 8
"""VAE scale factor of every Stable Diffusion: sizes must be multiples of it."""

JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class State(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"  # accepted, waiting for devices
    RUNNING = "running"  # an attempt has it on devices, or is encoding and uploading
    SUCCEEDED = "succeeded"  # every image is stored and recorded
    FAILED = "failed"  # it will not be tried again; `error` says why
    CANCELLED = "cancelled"  # the producer withdrew it


TRANSITIONS: Final = MappingProxyType(
    {
        State.QUEUED: frozenset({State.RUNNING, State.FAILED, State.CANCELLED}),
        State.RUNNING: frozenset(
            {State.RUNNING, State.QUEUED, State.SUCCEEDED, State.FAILED, State.CANCELLED}
        ),
        State.SUCCEEDED: frozenset[State](),
        State.FAILED: frozenset[State](),
        State.CANCELLED: frozenset[State](),
    }
)
"""Allowed moves. RUNNING to RUNNING is a new attempt after a dead one; to QUEUED a hand-back."""

TERMINAL: Final = frozenset(state for state, moves in TRANSITIONS.items() if not moves)


class ImageFormat(StrEnum):
    PNG = "png"
    WEBP = "webp"
    JPEG = "jpeg"


class CallbackEvent(StrEnum):
    """What a callback may report. The webhook type is `job.<event>`."""

    STARTED = "started"
    PROGRESS = "progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


DEFAULT_CALLBACK_EVENTS: Final = (
    CallbackEvent.SUCCEEDED,
    CallbackEvent.FAILED,
    CallbackEvent.CANCELLED,
)


class Model(BaseModel):
    """Base of everything that travels: frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+/-]{0,127}$")]
"""Of a model, a scheduler or a tenant; part of queue names."""


Whole = Annotated[int, Strict()]
"""Neither True nor "7"."""


class JobRequest(Model):
    """One prompt and its parameters, in diffusers' names.

    `None` means the model's own default, filled in by the worker and recorded beside the picture.
    """

    prompt: str
    negative_prompt: str = ""
    height: Whole | None = None
    width: Whole | None = None
    num_inference_steps: Annotated[Whole, Field(ge=1, le=MAX_STEPS)] | None = None
    guidance_scale: Annotated[float, Field(ge=0.0, le=MAX_GUIDANCE, allow_inf_nan=False)] | None = (
        None
    )
    num_images_per_prompt: Annotated[Whole, Field(ge=1, le=MAX_IMAGES)] = 1
    seed: Annotated[Whole, Field(ge=0, le=MAX_SEED)] = Field(
        default_factory=lambda: secrets.randbits(32)
    )
    """Drawn at submission if not given, so that a second attempt paints the same picture."""
    image: str | None = None
    """What to start from: an http(s) address, or an object of the fleet's store by key or URL."""
    mask_image: str | None = None
    """Where to paint (white) and what to keep (black) of `image`."""
    strength: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] | None = None
    """How far to leave `image`: the share of the steps that is painted."""
    preview: Annotated[bool, Strict()] = False
    """Whether the status shows, every few seconds, what is painted by then."""
    scheduler: Name | None = None
    model: Name | None = None
    format: ImageFormat = ImageFormat.PNG
    priority: Annotated[Whole, Field(ge=0, le=9)] = 3
    """Celery's on Redis: 0 is served first, 9 last; steps of three share a level."""
    tenant: Name | None = None
    """On whose behalf: tenants of one priority level take turns."""
    callback_url: str | None = None
    callback_events: tuple[CallbackEvent, ...] = DEFAULT_CALLBACK_EVENTS

    @field_validator("prompt", "negative_prompt")
    @classmethod
    def _fits(cls, text: str) -> str:
        if len(text) > MAX_PROMPT_CHARACTERS:
            raise ValueError(f"must be at most {MAX_PROMPT_CHARACTERS} characters")
        if any((c < " " and c not in "\t\n\r") or "\ud800" <= c <= "\udfff" for c in text):
            raise ValueError("must not contain control characters or broken UTF-8")
        return text

    @field_validator("prompt")
    @classmethod
    def _says_something(cls, prompt: str) -> str:
        if not prompt.strip():
            raise ValueError("must not be empty")
        return prompt

    @field_validator("height", "width")
    @classmethod
    def _is_a_size(cls, pixels: int | None) -> int | None:
        if pixels is None:
            return None
        if not SIZE_MULTIPLE <= pixels <= MAX_PIXELS_A_SIDE:
            raise ValueError(f"must be between {SIZE_MULTIPLE} and {MAX_PIXELS_A_SIDE} pixels")
        if pixels % SIZE_MULTIPLE:
            raise ValueError(f"must be divisible by {SIZE_MULTIPLE}")
        return pixels

    @field_validator("callback_url")
    @classmethod
    def _is_http(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError(
                "must be an http:// or https:// address in plain ASCII, without blanks"
            )
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http:// or https:// address")
        if parts.port == 0:  # and `port` itself raises ValueError beyond 65535
            raise ValueError("must not name port 0")
        if len(url) > 2_048:
            raise ValueError("must be at most 2048 characters")
        return url

    @field_validator("image", "mask_image")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address is None:
            return None
        if address.startswith(("http://", "https://")):
            return cls._is_http(address)
        if not address or not address.isascii() or not address.isprintable() or " " in address:
            raise ValueError("must be an http(s) address or an object's key, without blanks")
        if len(address) > MAX_ADDRESS_CHARACTERS:
            raise ValueError(f"must be at most {MAX_ADDRESS_CHARACTERS} characters")
        return address

    @model_validator(mode="after")
    def _pictures_come_together(self) -> Self:
        for field in ("mask_image", "strength"):
            if getattr(self, field) is not None and self.image is None:
                raise InvalidRequest(field, getattr(self, field), "needs an image")
        return self

    @model_validator(mode="after")
    def _sizes_come_together(self) -> Self:
        if (self.height is None) != (self.width is None):
            raise ValueError("height and width must be given together, or neither")
        return self

    @property
    def share_painted(self) -> float:
        """Of its steps: `strength` of a job that starts from a picture, all of any other."""
        if self.image is None:
            return 1.0
        return DEFAULT_STRENGTH if self.strength is None else self.strength

    def steps_painted(self, steps: int) -> int:
        """So many of `steps`."""
        return int(steps * self.share_painted)

    @classmethod
    def parse(cls, parameters: dict[str, Any]) -> Self:
        """Validate `parameters`. Raises InvalidRequest for the first field that is wrong."""
        try:
            return cls.model_validate(parameters)
        except ValidationError as error:
            raise _refusal(error, parameters) from None


class ImageResult(Model):
    """One stored picture."""

    index: int
    """0 .. num_images_per_prompt - 1"""
    key: str
    url: str
    seed: int
    sha256: str
    size: int
    """bytes"""
    height: int
    width: int
    format: ImageFormat
    nsfw: bool = False
    """Whether the model's safety checker flagged it; it is black then."""


class JobResult(Model):
    """What a succeeded job leaves: its pictures and how they came to be."""

    images: tuple[ImageResult, ...]
    model: str
    model_digest: str
    worker: str
    timings: dict[str, float]
    """Seconds: `waited`, `denoise` (its batch), `encode`, `upload`."""


class JobError(Model):
    """Why a job failed, in the words of shared.errors."""

    code: str
    message: str


class JobStatus(Model):
    """A job's record as it stands now. Times are Unix seconds by the Redis server's clock."""

    id: str
    state: State
    request: JobRequest
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    step: int = 0
    steps: int = 0
    deliveries: int = 0
    retries: int = 0
    """Attempts that failed for a reason that may pass."""
    retry_at: float | None = None
    """When it goes back to its queue, while it waits for that."""
    result: JobResult | None = None
    error: JobError | None = None
    preview: str | None = None
    """Of a running job that asked for it: its first picture so far, small and rough, as a `data:`
    URL."""

    @property
    def done(self) -> bool:
        return self.state in TERMINAL


def new_job_id() -> str:
    return uuid.uuid4().hex


def check_job_id(job_id: object) -> str:
    """Return a caller's id if it can be one. It becomes part of object keys, so it stays plain."""
    if not isinstance(job_id, str) or not JOB_ID.fullmatch(job_id):
        raise InvalidRequest(
            "id", job_id, "must be 1 to 128 letters, digits, '_', '.' or '-', and start plainly"
        )
    return job_id


def pack(request: JobRequest) -> dict[str, Any]:
    """The keyword arguments of the Celery message."""
    return {"version": MESSAGE_VERSION, "request": request.model_dump(mode="json")}


def unpack(kwargs: object, job_id: str) -> JobRequest:
    """The opposite of `pack`. A seed that was left out follows from the id, so that every delivery
    of the message asks for the same picture.

    Raises MessageRejected or InvalidRequest, never anything else.
    """
    if not isinstance(kwargs, dict):
        raise MessageRejected("message carries no keyword arguments")
    version, request = kwargs.get("version"), kwargs.get("request")
    if version != MESSAGE_VERSION:
        raise MessageRejected(
            f"message version {version!r} is not spoken here, only {MESSAGE_VERSION}; "
            "upgrade the producer, or let workers of its version drain the queue"
        )
    if not isinstance(request, dict):
        raise MessageRejected("message carries no request object")
    return JobRequest.parse({"seed": _seed_of(job_id), **request})


def _seed_of(job_id: str) -> int:
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:4])


def _refusal(error: ValidationError, parameters: dict[str, Any]) -> InvalidRequest:
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0]) if first["loc"] else "height"
    if first["type"] == "extra_forbidden":
        known = ", ".join(JobRequest.model_fields)
        return InvalidRequest(field, parameters.get(field), f"no such parameter; there are {known}")
    limit = first["msg"].removeprefix("Value error, ")
    limit = limit[0].lower() + limit[1:]
    return InvalidRequest(field, parameters.get(field), limit.replace("input should", "must"))
