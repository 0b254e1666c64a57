"""Decode the file of an init image or of a mask, which a stranger made, and resize it."""

import warnings
from io import BytesIO
from typing import Final

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from imagefleet.shared.errors import InvalidInput
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.images.file_structure import check_structure

# Pillow prints a warning for each damaged tag of a file, and a file may have 65,535 of them.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

MAX_PIXELS: Final = 40_000_000
MAX_SIDE: Final = 65_535
"""Pixels of the longest side. Pillow resizes a side in time that grows with it, under the GIL."""
_FORMATS: Final = ("PNG", "JPEG", "WEBP")
_FORMAT_NAMES: Final = ", ".join(_FORMATS)
_GREY_16_BIT_MODES: Final = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # names of Pillow
_DECODE_ERRORS: Final = (
    OSError,
    SyntaxError,  # Pillow raises it for a broken PNG
    ValueError,
    EOFError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


def decode_image(field: str, data: bytes, shape: Shape) -> Image.Image:
    """Decode an image as diffusers' `load_image` does; resize it as `VaeImageProcessor` does.

    Args:
        field: The parameter that named the image, for errors.

    Raises:
        InvalidInput: it cannot be read, or is too large.
    """
    try:
        check_structure(data)
        with Image.open(BytesIO(data), formats=_FORMATS) as opened:
            _check_size(field, *opened.size)
            upright = _to_rgb(ImageOps.exif_transpose(opened))
            return upright.resize((shape.width, shape.height), Image.Resampling.LANCZOS)
    except UnidentifiedImageError as error:  # its text shows the repr of a Python object
        raise InvalidInput(f"{field}: cannot be read as {_FORMAT_NAMES}") from error
    except _DECODE_ERRORS as error:
        raise InvalidInput(f"{field}: cannot be read as {_FORMAT_NAMES}: {error}") from error


def _check_size(field: str, width: int, height: int) -> None:
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        limit = f"{MAX_PIXELS:,} pixels, and {MAX_SIDE:,} wide and high"
        raise InvalidInput(f"{field}: {width}x{height}; must be at most {limit}")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _GREY_16_BIT_MODES:  # Pillow's own conversion makes all above 255 white
        image = Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
    return image.convert("RGB")
