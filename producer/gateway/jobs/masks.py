"""Turn masks as other APIs take them into masks as diffusers takes them: white is generated anew.

Input and output: image files. The functions raise Problem.
"""

from io import BytesIO
from typing import Final

from PIL import Image, ImageOps

from imagefleet.producer.gateway.problems import wrong_field

_MAX_PIXELS: Final = 4096 * 4096
_OPAQUE: Final = (255, 255)
_WITH_TRANSPARENCY: Final = ("PNG", "WEBP")
_OF_MASKS: Final = (*_WITH_TRANSPARENCY, "JPEG")
"""Decoders of other formats are not tried."""


def transparent_part(file: bytes) -> bytes:
    """Return a mask of what is transparent, as a PNG file."""
    image = _opened(file, _WITH_TRANSPARENCY)
    if not image.has_transparency_data:
        limit = "must be transparent where the image is edited; it has no transparency"
        raise wrong_field("mask", image.mode, limit)
    return _png(ImageOps.invert(image.convert("RGBA").getchannel("A")))


def check_proportions(image: bytes, mask: bytes) -> None:
    """Check that a mask has the width and height of its image, or the same proportions: a worker
    resizes both to one shape. An image that cannot be read is left to the checks of images."""
    try:
        with Image.open(BytesIO(image), formats=_OF_MASKS) as opened:
            wanted = opened.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return
    size = _opened(mask, _WITH_TRANSPARENCY).size
    if abs(size[0] * wanted[1] - size[1] * wanted[0]) > max(*size, *wanted):
        shown, limit = (f"{width}x{height} pixels" for width, height in (size, wanted))
        raise wrong_field("mask", shown, f"must have the proportions of the image, {limit}")


def white_part(file: bytes, *, invert: bool) -> bytes:
    """Return a mask of what is white, as a PNG file; if it is transparent anywhere, of what is
    opaque.

    Args:
        invert: returns the mask of all the rest.
    """
    image = _opened(file, _OF_MASKS).convert("RGBA")
    alpha = image.getchannel("A")
    mask = image.convert("L") if alpha.getextrema() == _OPAQUE else alpha
    return _png(ImageOps.invert(mask) if invert else mask)


def _opened(file: bytes, formats: tuple[str, ...]) -> Image.Image:
    try:
        with Image.open(BytesIO(file), formats=formats) as image:
            if image.width * image.height > _MAX_PIXELS:
                limit = f"must have at most {_MAX_PIXELS:,} pixels"
                raise wrong_field("mask", f"{image.width}x{image.height}", limit)
            image.load()
            return image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise wrong_field(
            "mask", f"{len(file):,} bytes", "must be an image file, as of PNG"
        ) from None


def _png(mask: Image.Image) -> bytes:
    file = BytesIO()
    mask.save(file, "PNG")
    return file.getvalue()
