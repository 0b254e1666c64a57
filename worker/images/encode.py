"""From pixels to the bytes of a picture file that carries its own parameters.

Goes in: uint8 RGB and what `worker.images.metadata` says of it. Comes out: PNG, WebP or JPEG. The
same input gives the same bytes. The only module that knows Pillow.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from imagefleet.worker.images.metadata import infotext

_PNG_COMPRESSION: Final = 3
"""zlib level. At 512² 52 images/s a core where Pillow's default makes 16, at the same size."""
_WEBP_QUALITY: Final = 80
_WEBP_METHOD: Final = 0
"""210 images/s a core at 512²."""
_JPEG_QUALITY: Final = 90

_EXIF_IFD: Final = 0x8769
_IMAGE_DESCRIPTION: Final = 0x010E
_USER_COMMENT: Final = 0x9286


@dataclass(frozen=True, kw_only=True)
class EncodedImage:
    """One picture as a file."""

    data: bytes
    content_type: str
    extension: str


def encode(
    pixels: NDArray[np.uint8], file_format: str, described: Mapping[str, Any]
) -> EncodedImage:
    """`pixels` is [height, width, 3], RGB; `described` comes from `picture_metadata`.

    Raises:
        ValueError: another shape or type of array, or a format that is not in `FORMATS`.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"pixels are {pixels.dtype}{list(pixels.shape)}, not uint8[h, w, 3]")
    if file_format not in FORMATS:
        raise ValueError(f"format {file_format!r} is none of {', '.join(FORMATS)}")
    content_type, extension, save = FORMATS[file_format]
    buffer = BytesIO()
    save(Image.fromarray(pixels), buffer, described)
    return EncodedImage(data=buffer.getvalue(), content_type=content_type, extension=extension)


def _save_png(image: Image.Image, buffer: BytesIO, described: Mapping[str, Any]) -> None:
    """Text chunks `parameters`, where viewers look, and `imagefleet`, which loses nothing."""
    chunks = PngImagePlugin.PngInfo()
    chunks.add_text("parameters", infotext(described))  # tEXt, or iTXt beyond Latin-1
    chunks.add_itxt("imagefleet", _json(described))
    image.save(buffer, "PNG", compress_level=_PNG_COMPRESSION, pnginfo=chunks)


def _save_webp(image: Image.Image, buffer: BytesIO, described: Mapping[str, Any]) -> None:
    exif = _exif(described)
    exif[_IMAGE_DESCRIPTION] = json.dumps(described)  # ASCII, as Exif 2.3 wants it
    image.save(buffer, "WEBP", quality=_WEBP_QUALITY, method=_WEBP_METHOD, exif=exif)


def _save_jpeg(image: Image.Image, buffer: BytesIO, described: Mapping[str, Any]) -> None:
    """The JSON goes into the comment: with it two of the longest prompts would burst the 64 KiB
    that Exif has in a JPEG."""
    comment = _json(described).encode()
    image.save(buffer, "JPEG", quality=_JPEG_QUALITY, exif=_exif(described), comment=comment)


def _exif(described: Mapping[str, Any]) -> Image.Exif:
    """UserComment as the web UI writes it: UTF-16, big-endian, behind its code's name."""
    exif = Image.Exif()
    comment = b"UNICODE\0" + infotext(described).encode("utf-16-be")
    exif.get_ifd(_EXIF_IFD)[_USER_COMMENT] = comment
    return exif


def _json(described: Mapping[str, Any]) -> str:
    return json.dumps(described, ensure_ascii=False)


FORMATS: Final[Mapping[str, tuple[str, str, Callable[..., None]]]] = {
    "png": ("image/png", "png", _save_png),
    "webp": ("image/webp", "webp", _save_webp),
    "jpeg": ("image/jpeg", "jpg", _save_jpeg),
}
"""Content type, extension and how to write it."""
