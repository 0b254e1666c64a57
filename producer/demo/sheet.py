"""The contact sheet: every picture with its caption, on one page."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

_CELL: Final = 192
"""Pixels a side; small pictures are enlarged to it without smoothing."""
_GAP: Final = 16
_LINES: Final = 3
_LINE_HEIGHT: Final = 17
_CAPTION_WIDTH: Final = 30
"""Characters that fit under a picture."""


def contact_sheet(pictures: Sequence[tuple[Path, str]], target: Path, columns: int = 4) -> None:
    """Write `pictures` (file, caption) as one PNG to `target`."""
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    cell_height = _CELL + _LINES * _LINE_HEIGHT + _GAP
    size = (columns * (_CELL + _GAP) + _GAP, rows * (cell_height + _GAP) + _GAP)
    sheet = Image.new("RGB", size, "white")
    for place, (path, caption) in enumerate(pictures):
        left = _GAP + (place % columns) * (_CELL + _GAP)
        top = _GAP + (place // columns) * (cell_height + _GAP)
        _paste(sheet, path, caption, left, top)
    sheet.save(target)


def _paste(sheet: Image.Image, path: Path, caption: str, left: int, top: int) -> None:
    with Image.open(path) as picture:
        scale = _CELL / max(picture.size)
        smoothing = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
        size = (round(picture.width * scale), round(picture.height * scale))
        sheet.paste(picture.convert("RGB").resize(size, smoothing), (left, top))
    lines = textwrap.wrap(caption, _CAPTION_WIDTH, max_lines=_LINES, placeholder=" …")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=13)
    draw.multiline_text((left, top + _CELL + 6), "\n".join(lines), fill="black", font=font)
