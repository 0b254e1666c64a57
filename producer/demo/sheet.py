"""Write the contact sheet: all images with their captions in one PNG."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

_CELL: Final = 192
"""Pixels per side. Smaller images are enlarged to this size without smoothing."""
_GAP: Final = 16
_CAPTION_LINES: Final = 3
_LINE_HEIGHT: Final = 17
_CAPTION_WIDTH: Final = 30
"""Characters that fit on one line under an image."""


def contact_sheet(images: Sequence[tuple[Path, str]], target: Path, columns: int = 4) -> None:
    """Write `images` (file, caption) as one PNG to `target`."""
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    cell_height = _CELL + _CAPTION_LINES * _LINE_HEIGHT + _GAP
    size = (columns * (_CELL + _GAP) + _GAP, rows * (cell_height + _GAP) + _GAP)
    sheet = Image.new("RGB", size, "white")
    for place, (path, caption) in enumerate(images):
        left = _GAP + (place % columns) * (_CELL + _GAP)
        top = _GAP + (place // columns) * (cell_height + _GAP)
        _paste_cell(sheet, path, caption, left, top)
    sheet.save(target)


def _paste_cell(sheet: Image.Image, path: Path, caption: str, left: int, top: int) -> None:
    with Image.open(path) as image:
        scale = _CELL / max(image.size)
        resampling = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
        size = (round(image.width * scale), round(image.height * scale))
        sheet.paste(image.convert("RGB").resize(size, resampling), (left, top))
    lines = textwrap.wrap(caption, _CAPTION_WIDTH, max_lines=_CAPTION_LINES, placeholder=" …")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=13)
    draw.multiline_text((left, top + _CELL + 6), "\n".join(lines), fill="black", font=font)
