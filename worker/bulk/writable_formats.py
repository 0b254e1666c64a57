"""Say which formats of datasets and of image files this host can write."""

from importlib.util import find_spec
from typing import Final

from PIL import features

from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.jobs.model import ImageFormat

_CODECS: Final = {ImageFormat.PNG: "zlib", ImageFormat.WEBP: "webp", ImageFormat.JPEG: "jpg"}
"""Pillow has these names for what it needs of a format."""


def writable_shard_formats() -> tuple[BulkFormat, ...]:
    """Return the formats of datasets that can be written. Parquet needs pyarrow, an extra."""
    has_pyarrow = find_spec("pyarrow") is not None  # to import it would take memory for good
    return tuple(each for each in BulkFormat if each is not BulkFormat.PARQUET or has_pyarrow)


def writable_image_formats() -> tuple[ImageFormat, ...]:
    """Return the formats of image files that the Pillow of this host can write."""
    return tuple(each for each in ImageFormat if features.check(_CODECS[each]))
