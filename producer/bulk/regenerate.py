"""Run a row of a dataset again as an ordinary job, read its images from the fleet's store, and
compare images."""

from collections.abc import Callable
from io import BytesIO
from typing import Final, Protocol

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.process.extras import how_to_install

_TIMEOUT_S: Final = 600.0

Regenerate = Callable[[JobRequest], list[bytes]]
"""Returns all images of a request, as files, as the fleet generates them now."""


class SubmittedJob(Protocol):
    """The part of `Job` that `regenerate` uses."""

    def result(self, timeout: float | None = None) -> JobResult: ...


def regenerate(submit: Callable[..., SubmittedJob], request: JobRequest) -> list[bytes]:
    """Submit `request`, wait for it, and return its image files.

    Args:
        submit: `Client.submit`, or a callable with the same arguments.

    Raises:
        ResultTimeout: the job was not done after ten minutes.
        JobFailed, JobCancelled: the job ended otherwise.
    """
    job = submit(**request.model_dump(exclude_defaults=True))
    return [image.read() for image in job.result(timeout=_TIMEOUT_S).images]


def pixel_difference(one: bytes, other: bytes) -> int:
    """Return the largest difference of two image files in any channel of any pixel, of 255; 255 if
    their sizes differ. Raise ConfigurationError if Pillow is missing."""
    if one == other:
        return 0
    try:
        from PIL import Image, ImageChops
    except ImportError:
        raise ConfigurationError(f"comparing needs Pillow; {how_to_install('dataset')}") from None
    with Image.open(BytesIO(one)) as first, Image.open(BytesIO(other)) as second:
        if first.size != second.size:
            return 255
        difference = ImageChops.difference(first.convert("RGB"), second.convert("RGB"))
    histogram = difference.histogram()  # 256 levels for each of the three channels
    return max(index % 256 for index, pixels in enumerate(histogram) if pixels)
