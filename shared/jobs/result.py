"""Describe the result of a job. Its images read themselves from their store.

Input: the fields of a record. Output: the result, or the other way round. This module does not
depend on Redis, Celery or devices.
"""

import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

from pydantic import Field, PrivateAttr, TypeAdapter

from imagefleet.shared.errors import ConfigurationError, InvalidInput, InvalidRequest
from imagefleet.shared.jobs.model import ImageFormat, Model
from imagefleet.shared.process.extras import how_to_install
from imagefleet.shared.storage import ObjectStore, open_store

if TYPE_CHECKING:
    from PIL import Image

LATENTS: Final = "safetensors"
"""Latents have this format."""
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
    """An image result describes one stored image of a job, or its latents, and reads it.

    Reading may raise StorageUnavailable, StorageDenied, and ConfigurationError if the store cannot
    be opened from this host.
    """

    index: int
    """It goes from 0 to num_images_per_prompt - 1."""
    key: str
    """It is the object's name in the store: `jobs/<job id>/<index>.png`."""
    url: str
    """It is the store's URL and the key, as in `s3://bucket/jobs/<job id>/0.png`. No web address;
    see `presigned_url`."""
    seed: int
    sha256: str
    """It is the digest of the file. It differs between two jobs, because the file holds the job's
    id."""
    pixel_sha256: str | None = None
    """Digest of the RGB pixels before they were encoded, row by row with one byte per value. The
    same for the same image of any job. None: a worker of release 0.1.0, or latents."""
    size: int
    """It counts the bytes of the file."""
    height: int
    """Pixels, as `width`; of latents those of the image that they become."""
    width: int
    format: ImageFormat | Literal["safetensors"]
    """`safetensors` stands for the latents of a job with `denoising_end`."""
    nsfw: bool = False
    """It says whether the model's safety checker flagged the image. A flagged image is black."""
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
            InvalidRequest: it is latents, and no image.
            ConfigurationError: Pillow is not installed.
        """
        if self.format == LATENTS:
            limit = "holds latents; read() returns the file, and a job takes its key as latents="
            raise InvalidRequest("key", self.key, limit)
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
        if suffix in (*ImageFormat, LATENTS) and suffix != self.format:
            limit = f"the image is a {self.format} file"
            if self.format != LATENTS:
                limit += f"; convert it with open().save({target.name!r})"
            raise InvalidRequest("path", str(path), limit)
        target.write_bytes(self.read())
        return target

    def presigned_url(self, expires_s: int = 3600) -> str:
        """Return an https URL of an image in S3 or Google Cloud Storage, which anybody can read for
        `expires_s` seconds.

        Raises:
            InvalidRequest: `expires_s` is no int from 1 to 604,800 (7 days).
            ConfigurationError: the store signs no URLs, or credentials are missing.
            BrokerUnavailable: Redis, which names the store, does not answer.
        """
        return self._store().presigned_url(self.key, expires_s)

    def _store(self) -> ObjectStore:
        return self._access.open(self.url.removesuffix(self.key))


class UsedLora(Model):
    """A LoRA that the images of a job were generated with."""

    name: str
    digest: str
    """It is `sha256:…` of its file."""
    scale: float


class JobResult(Model):
    """A job that succeeded has this result: its images and how they were made."""

    images: tuple[ImageResult, ...]
    model: str
    model_digest: str
    job_loras: tuple[UsedLora, ...] = Field(default=(), exclude_if=operator.not_)
    """The LoRA that the job chose."""
    worker: str
    timings: dict[str, float]
    """They are seconds: `waited`, `denoise` (of its batch), `encode`, `upload`."""

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
