"""Draw a contact sheet: images with their captions in one PNG. It needs Pillow."""

import textwrap
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from PIL import Image

_CELL: Final = 192
"""A cell has this many pixels per side. Smaller images are enlarged to this size without smoothing.
"""
_GAP: Final = 16
_CAPTION_LINES: Final = 3
_LINE_HEIGHT: Final = 17
_CAPTION_WIDTH: Final = 30
"""Characters that fit on one line under an image."""


def contact_sheet(images: Sequence[tuple[bytes, str]], columns: int = 4) -> bytes:
    """Return `images` (file, caption) as one PNG file. Equal images give equal bytes.

    Raises:
        ImportError: Pillow is not installed.
        OSError: a file is no image.
    """
    from PIL import Image

    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    cell_height = _CELL + _CAPTION_LINES * _LINE_HEIGHT + _GAP
    size = (columns * (_CELL + _GAP) + _GAP, rows * (cell_height + _GAP) + _GAP)
    sheet = Image.new("RGB", size, "white")
    for place, (data, caption) in enumerate(images):
        left = _GAP + (place % columns) * (_CELL + _GAP)
        top = _GAP + (place // columns) * (cell_height + _GAP)
        _paste_cell(sheet, data, caption, left, top)
    file = BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _paste_cell(sheet: "Image.Image", data: bytes, caption: str, left: int, top: int) -> None:
    from PIL import Image, ImageDraw, ImageFont

    with Image.open(BytesIO(data)) as image:
        scale = _CELL / max(image.size)
        resampling = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        sheet.paste(image.convert("RGB").resize(size, resampling), (left, top))
    lines = textwrap.wrap(caption, _CAPTION_WIDTH, max_lines=_CAPTION_LINES, placeholder=" …")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=13)
    draw.multiline_text((left, top + _CELL + 6), "\n".join(lines), fill="black", font=font)
