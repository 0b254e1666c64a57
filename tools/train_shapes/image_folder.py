"""A folder of images with their prompts, which any engine can write, and contact sheets.

The folder has PNG files and a `manifest.jsonl` with lines of {"file", "prompt"}.
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
class CaptionedImage:
    """An image and the prompt that it should show."""

    prompt: str
    image: ImageArray


def write_images(folder: Path, captioned: Iterable[CaptionedImage]) -> None:
    """Write the images and the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / MANIFEST).open("w", encoding="utf-8") as manifest:
        for index, one in enumerate(captioned):
            name = f"{index:04d}.png"
            Image.fromarray(one.image).save(folder / name)
            manifest.write(json.dumps({"file": name, "prompt": one.prompt}) + "\n")


def read_images(folder: Path) -> list[CaptionedImage]:
    """Read a folder that `write_images` or another engine wrote."""
    lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines if line]
    return [
        CaptionedImage(
            prompt=entry["prompt"],
            image=np.asarray(Image.open(folder / entry["file"]).convert("RGB")),
        )
        for entry in entries
    ]


def contact_sheet(
    captioned: list[CaptionedImage], *, columns: int, labels: bool = True
) -> Image.Image:
    """Return all images in rows, each above its prompt."""
    side = captioned[0].image.shape[0] * _ZOOM
    height = side + (_LABEL_HEIGHT if labels else 0)
    rows = -(-len(captioned) // columns)
    sheet = Image.new("RGB", (columns * (side + 4), rows * (height + 4)), "white")
    pen = ImageDraw.Draw(sheet)
    for index, one in enumerate(captioned):
        x, y = index % columns * (side + 4), index // columns * (height + 4)
        sheet.paste(
            Image.fromarray(one.image).resize((side, side), Image.Resampling.NEAREST), (x, y)
        )
        if labels:
            lines = textwrap.wrap(one.prompt, _LABEL_LETTERS)[:_LABEL_LINES]
            pen.multiline_text(
                (x + 2, y + side), "\n".join(lines), fill="black", font_size=9, spacing=1
            )
    return sheet
