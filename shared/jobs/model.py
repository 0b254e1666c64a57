"""Define the vocabulary of jobs: states and their transitions, results, errors and ids.

`docs/glossary.md` defines the terms. The images of a result read themselves from their store. This
module does not know Redis, Celery or devices.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PrivateAttr,
    TypeAdapter,
    field_validator,
)

from imagefleet.shared.errors import ConfigurationError, InvalidInput, InvalidRequest
from imagefleet.shared.extras import how_to_install
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.shared.text import printable

if TYPE_CHECKING:
    from PIL import Image

JOB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


MAX_ERROR_CHARACTERS: Final = 2_000
"""Length of an error's message in a record, and of a reason in a dead letter."""


class State(StrEnum):
    """A job is in exactly one of these states."""

    QUEUED = "queued"  # accepted; it waits for devices
    RUNNING = "running"  # an attempt generates, encodes or uploads its images
    SUCCEEDED = "succeeded"  # every image is stored and recorded
    FAILED = "failed"  # it will not be tried again; `error` says why
    CANCELLED = "cancelled"  # its producer cancelled it


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
"""Allowed transitions. RUNNING to RUNNING is a new attempt after a worker died. RUNNING to QUEUED
is a requeue or a retry."""

TERMINAL: Final = frozenset(state for state, targets in TRANSITIONS.items() if not targets)


class ImageFormat(StrEnum):
    """An image is stored in one of these file formats."""

    PNG = "png"
    WEBP = "webp"
    JPEG = "jpeg"


class CallbackEvent(StrEnum):
    """A callback reports one of these events. The type in its body is `job.<event>`."""

    STARTED = "started"
    PROGRESS = "progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Model(BaseModel):
    """Base of all records that are stored or sent: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_QUEUE_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,127}")


def check_name(name: str) -> str:
    """Return the name of a model, scheduler or tenant. It may become part of a queue's name.

    Raises:
        ValueError: it has other characters than are allowed, or too many.
    """
    if not _QUEUE_SAFE.fullmatch(name):
        raise ValueError(
            "must be 1 to 128 letters, digits, '_', '.', '+', '/' or '-', and begin with a letter "
            "or digit"
        )
    return name


QueueSafeName = Annotated[str, AfterValidator(check_name)]


_DIGESTS: Final = TypeAdapter(tuple[str | None, ...])


@dataclass(frozen=True)
class _StoreAccess:
    """How images are read. It is no part of a result, so two of them are always equal."""

    open: Callable[[str], ObjectStore] = field(default=open_store, compare=False)
    """Returns the store of the images whose URLs begin with a root."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Leave the client's connection out of copies and pickles of a result."""
        return type(self), ()


class ImageResult(Model):
    """An image result describes one stored image of a job, and reads it.

    Reading may raise StorageUnavailable, StorageDenied, and ConfigurationError if the store cannot
    be opened from this host.
    """

    index: int
    """0 to num_images_per_prompt - 1."""
    key: str
    url: str
    seed: int
    sha256: str
    """Digest of the file. It differs between two jobs, because the file holds the job's id."""
    pixel_sha256: str | None = None
    """Digest of the RGB pixels before they were encoded, row by row with one byte per value. The
    same for the same image of any job. None: a worker of release 0.1.0."""
    size: int
    """Bytes."""
    height: int
    width: int
    format: ImageFormat
    nsfw: bool = False
    """Whether the model's safety checker flagged the image. A flagged image is black."""
    _access: _StoreAccess = PrivateAttr(default_factory=_StoreAccess)

    @property
    def file_name(self) -> str:
        """A name that no other image of the fleet has: job id, index and extension."""
        return self.key.removeprefix("jobs/").replace("/", "-")

    def read(self) -> bytes:
        """Return the content of the file.

        Raises:
            InvalidInput: the file was deleted.
            BrokerUnavailable: Redis, which names the store, does not answer.
        """
        try:
            return self._store().get(self.key)
        except KeyError:
            raise InvalidInput(f"there is no {self.key} in {self._store().url} any more") from None

    def open(self) -> "Image.Image":
        """Return the image as Pillow opens it.

        Raises:
            InvalidInput: the file was deleted.
            BrokerUnavailable: Redis, which names the store, does not answer.
            ConfigurationError: Pillow is not installed.
        """
        try:
            from PIL import Image
        except ImportError:
            raise ConfigurationError(
                f"opening an image needs Pillow; {how_to_install('images')}"
            ) from None
        return Image.open(BytesIO(self.read()))

    def save(self, path: str | Path) -> Path:
        """Write the file to `path`, or under its `file_name` into the folder `path`.

        Return where it was written. Raises InvalidInput if the file was deleted, InvalidRequest if
        the name's extension is that of another format.
        """
        target = Path(path)
        if target.is_dir():
            target /= self.file_name
        suffix = target.suffix.lower().removeprefix(".").replace("jpg", "jpeg")
        if suffix in tuple(ImageFormat) and suffix != self.format:
            limit = (
                f"the image is a {self.format} file; convert it with open().save({target.name!r})"
            )
            raise InvalidRequest("path", str(path), limit)
        target.write_bytes(self.read())
        return target

    def presigned_url(self, expires_s: int = 3600) -> str:
        """Return an https address of an S3 object that anybody can read for `expires_s` seconds.

        Raises:
            InvalidRequest: `expires_s` is no int from 1 to 604,800 (7 days).
            ConfigurationError: the store is no S3 bucket, or credentials are missing.
            BrokerUnavailable: Redis, which names the store, does not answer.
        """
        return self._store().presigned_url(self.key, expires_s)

    def _store(self) -> ObjectStore:
        return self._access.open(self.url.removesuffix(self.key))


class JobResult(Model):
    """A job that succeeded has this result: its images and how they were made."""

    images: tuple[ImageResult, ...]
    model: str
    model_digest: str
    worker: str
    timings: dict[str, float]
    """Seconds: `waited`, `denoise` (of its batch), `encode`, `upload`."""

    def record_fields(self) -> dict[str, str]:
        """Return the fields of the job's record.

        Release 0.1.0 cannot read a result with unknown fields, so the digests of the pixels have a
        field of their own.
        """
        digests = [image.pixel_sha256 for image in self.images]
        without = {"images": {"__all__": {"pixel_sha256"}}}
        fields = {"result": self.model_dump_json(exclude=without)}
        return {**fields, "pixel_sha256": json.dumps(digests)} if any(digests) else fields

    @classmethod
    def from_record(cls, fields: Mapping[str, str]) -> Self:
        """Return the result in the fields of a record. Unknown fields of the result are ignored.

        Raises:
            ValueError, KeyError: a field is missing or damaged.
        """
        result = cls.model_validate_json(fields["result"], extra="ignore")
        if "pixel_sha256" not in fields:
            return result
        digests = _DIGESTS.validate_json(fields["pixel_sha256"])
        images = tuple(
            image.model_copy(update={"pixel_sha256": digest})
            for image, digest in zip(result.images, digests, strict=True)
        )
        return result.model_copy(update={"images": images})

    def save(self, folder: str | Path) -> list[Path]:
        """Write all images into a folder, which is made if it is missing. Return their paths."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [image.save(folder) for image in self.images]

    def bind(self, open_store: Callable[[str], ObjectStore]) -> None:
        """Read the images through `open_store`, which gets the root of an image's URL."""
        for image in self.images:
            image._access = _StoreAccess(open_store)


class JobError(Model):
    """A job that failed has this error. `code` is the code of an error in `shared.errors`."""

    code: str
    message: str

    @field_validator("message")
    @classmethod
    def _make_printable(cls, message: str) -> str:
        """Escape and bound the text, which may quote a server; record and callback carry it."""
        return printable(message, MAX_ERROR_CHARACTERS)


def new_job_id() -> str:
    """Return a random id of 32 hexadecimal digits."""
    return uuid.uuid4().hex


def check_job_id(job_id: object) -> str:
    """Return `job_id` if it is valid. It becomes part of object keys, so it must be plain.

    Raises:
        InvalidRequest: it is not a string of allowed characters.
    """
    if not isinstance(job_id, str) or not JOB_ID.fullmatch(job_id):
        raise InvalidRequest(
            "id",
            job_id,
            "must be 1 to 128 letters, digits, '_', '.' or '-', and begin with a letter or digit",
        )
    return job_id
