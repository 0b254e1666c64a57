"""A folder of pictures with their prompts, whatever engine made them.

Goes in: pictures and prompts, or such a folder. Comes out: PNG files beside a
`manifest.jsonl` of {"file", "prompt"} lines, or a contact sheet. Judges nothing.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tools.train_shapes.scenes import ImageArray

MANIFEST = "manifest.jsonl"
_LABEL_LETTERS = 25
_LABEL_LINES = 3
_LABEL_HEIGHT = 36
_ZOOM = 2


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One picture and the prompt that it should show."""

    prompt: str
    picture: ImageArray


def write_gallery(folder: Path, exhibits: Iterable[Exhibit]) -> None:
    """Writes pictures and manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / MANIFEST).open("w", encoding="utf-8") as manifest:
        for index, exhibit in enumerate(exhibits):
            name = f"{index:04d}.png"
            Image.fromarray(exhibit.picture).save(folder / name)
            manifest.write(json.dumps({"file": name, "prompt": exhibit.prompt}) + "\n")


def read_gallery(folder: Path) -> list[Exhibit]:
    """Reads what `write_gallery`, or another engine, wrote."""
    lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines if line]
    return [
        Exhibit(
            prompt=entry["prompt"],
            picture=np.asarray(Image.open(folder / entry["file"]).convert("RGB")),
        )
        for entry in entries
    ]


def contact_sheet(exhibits: list[Exhibit], *, columns: int, labels: bool = True) -> Image.Image:
    """All pictures in rows, each over its prompt."""
    side = exhibits[0].picture.shape[0] * _ZOOM
    height = side + (_LABEL_HEIGHT if labels else 0)
    rows = -(-len(exhibits) // columns)
    sheet = Image.new("RGB", (columns * (side + 4), rows * (height + 4)), "white")
    pen = ImageDraw.Draw(sheet)
    for index, exhibit in enumerate(exhibits):
        x, y = index % columns * (side + 4), index // columns * (height + 4)
        sheet.paste(
            Image.fromarray(exhibit.picture).resize((side, side), Image.Resampling.NEAREST), (x, y)
        )
        if labels:
            lines = textwrap.wrap(exhibit.prompt, _LABEL_LETTERS)[:_LABEL_LINES]
            pen.multiline_text(
                (x + 2, y + side), "\n".join(lines), fill="black", font_size=9, spacing=1
            )
    return sheet
