"""Scenes: their attributes, the held-out split, and how they are drawn as 64x64 RGB images.

A scene has a colour, a shape, a background, a size and a position. A random generator adds jitter.
This module does not use captions, networks or torch, so that the judge and the tests can import it
with numpy and Pillow alone.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

SIDE = 64
"""Pixels along each edge of an image."""

Rgb = tuple[int, int, int]
ImageArray = NDArray[np.uint8]
Coverage = NDArray[np.float32]
Point = tuple[float, float]

# The channels are near 0, one half or 255. Guidance pushes a colour away from mid grey, which
# changes such a colour little.
PALETTE: dict[str, Rgb] = {
    "red": (228, 26, 28),
    "orange": (255, 136, 0),
    "yellow": (255, 226, 20),
    "green": (24, 160, 56),
    "blue": (24, 70, 235),
    "purple": (136, 24, 180),
    "pink": (255, 130, 200),
    "white": (252, 252, 252),
    "black": (14, 14, 18),
}

SHAPES = ("circle", "square", "triangle", "star", "ring", "heart")

RADII: dict[str, float] = {"small": 0.19, "medium": 0.27, "large": 0.36}
"""Radius of a shape, as a share of the image's side."""

OFFSETS: dict[str, float] = {"small": 0.26, "medium": 0.19, "large": 0.125}
"""Distance from the middle of a shape that is not in the centre, as a share of the side."""

DIRECTIONS: dict[str, Point] = {
    "left": (-1.0, 0.0),
    "right": (1.0, 0.0),
    "top": (0.0, -1.0),
    "bottom": (0.0, 1.0),
    "center": (0.0, 0.0),
}

MIN_CONTRAST = 150.0
"""The least Euclidean RGB distance between a shape and its background."""

HELD_OUT_ONE_IN = 5
"""One combination in five is never trained on."""

_SUPERSAMPLING = 4


@dataclass(frozen=True, kw_only=True)
class Combination:
    """The attributes by which scenes are held out."""

    colour: str
    shape: str
    background: str


@dataclass(frozen=True, kw_only=True)
class Scene:
    """All attributes that a caption may name."""

    combination: Combination
    size: str
    position: str


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """Variations that no caption names: shifts as shares of the side, shades in RGB levels."""

    shift: Point = (0.0, 0.0)
    growth: float = 1.0
    colour_shade: Rgb = (0, 0, 0)
    background_shade: Rgb = (0, 0, 0)


def contrast(first: str, second: str) -> float:
    """Return the Euclidean distance of two named colours in RGB."""
    return math.dist(PALETTE[first], PALETTE[second])


def combinations() -> list[Combination]:
    """Return every combination with enough contrast, in a fixed order."""
    return [
        Combination(colour=colour, shape=shape, background=background)
        for colour, shape, background in itertools.product(PALETTE, SHAPES, PALETTE)
        if contrast(colour, background) >= MIN_CONTRAST
    ]


def is_held_out(combination: Combination) -> bool:
    """Whether training never sees it. A hash of its name decides, so that the split is stable."""
    name = f"{combination.colour} {combination.shape} on {combination.background}"
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def split(*, held_out: bool) -> list[Combination]:
    """Return the held-out or the trained combinations."""
    return [one for one in combinations() if is_held_out(one) == held_out]


def sample_scene(rng: np.random.Generator, among: list[Combination]) -> Scene:
    """Return a random scene; combinations, sizes and positions are equally likely."""
    return Scene(
        combination=among[int(rng.integers(len(among)))],
        size=str(rng.choice(list(RADII))),
        position=str(rng.choice(list(DIRECTIONS))),
    )


def sample_jitter(rng: np.random.Generator) -> Jitter:
    """Return the random variations in which two images of one caption differ."""

    def shade() -> Rgb:
        red, green, blue = (int(step) for step in rng.integers(-7, 8, size=3))
        return red, green, blue

    dx, dy = rng.uniform(-0.025, 0.025, size=2)
    return Jitter(
        shift=(float(dx), float(dy)),
        growth=float(rng.uniform(0.94, 1.06)),
        colour_shade=shade(),
        background_shade=shade(),
    )


def centre_of(size: str, position: str) -> Point:
    """Return the place of a shape's middle, as shares of the side."""
    dx, dy = DIRECTIONS[position]
    return 0.5 + dx * OFFSETS[size], 0.5 + dy * OFFSETS[size]


def draw(scene: Scene, jitter: Jitter | None = None) -> ImageArray:
    """Draw a scene as an anti-aliased image, uint8 of shape (64, 64, 3)."""
    jitter = jitter or Jitter()
    x, y = centre_of(scene.size, scene.position)
    coverage = shape_coverage(
        scene.combination.shape,
        centre=(x + jitter.shift[0], y + jitter.shift[1]),
        radius=RADII[scene.size] * jitter.growth,
    )
    background = _shaded(scene.combination.background, jitter.background_shade)
    canvas = np.broadcast_to(background, (SIDE, SIDE, 3))
    return to_image(blend(canvas, _shaded(scene.combination.colour, jitter.colour_shade), coverage))


def draw_crowd(rng: np.random.Generator) -> ImageArray:
    """Draw several overlapping shapes in any colours, for the autoencoder's training."""
    names = list(PALETTE)
    shade = sample_jitter(rng).background_shade
    canvas = np.broadcast_to(_shaded(str(rng.choice(names)), shade), (SIDE, SIDE, 3))
    for _ in range(int(rng.integers(3, 7))):
        x, y = rng.uniform(0.1, 0.9, size=2)
        coverage = shape_coverage(
            str(rng.choice(SHAPES)),
            centre=(float(x), float(y)),
            radius=float(rng.uniform(0.15, 0.38)),
        )
        canvas = blend(canvas, _shaded(str(rng.choice(names)), shade), coverage)
    return to_image(canvas)


def blend(
    canvas: NDArray[np.float32], colour: NDArray[np.float32], coverage: Coverage
) -> NDArray[np.float32]:
    """Blend a colour (3,) into a canvas (side, side, 3) by the coverage (side, side)."""
    return canvas + coverage[..., None] * (colour - canvas)


def to_image(canvas: NDArray[np.float32]) -> ImageArray:
    """Round to bytes."""
    return np.clip(np.rint(canvas), 0, 255).astype(np.uint8)


def shape_coverage(shape: str, *, centre: Point, radius: float, side: int = SIDE) -> Coverage:
    """Return how much of each pixel the shape covers, 0..1, float32 of shape (side, side)."""
    fine = side * _SUPERSAMPLING
    image = Image.new("L", (fine, fine), 0)
    x, y = centre
    _DRAW_SHAPE[shape](ImageDraw.Draw(image), (x * fine, y * fine), radius * fine)
    reduced = image.reduce(_SUPERSAMPLING)
    return np.asarray(reduced, dtype=np.float32) / np.float32(255.0)


def _shaded(name: str, shade: Rgb) -> NDArray[np.float32]:
    return np.clip(np.asarray(PALETTE[name], np.float32) + np.asarray(shade, np.float32), 0, 255)


def _circle(pen: ImageDraw.ImageDraw, centre: Point, radius: float) -> None:
    pen.ellipse(_box(centre, radius), fill=255)


def _ring(pen: ImageDraw.ImageDraw, centre: Point, radius: float) -> None:
    pen.ellipse(_box(centre, radius), fill=255)
    pen.ellipse(_box(centre, radius * 0.52), fill=0)


def _square(pen: ImageDraw.ImageDraw, centre: Point, radius: float) -> None:
    pen.rectangle(_box(centre, radius * 0.86), fill=255)


def _triangle(pen: ImageDraw.ImageDraw, centre: Point, radius: float) -> None:
    corners = [(0.0, -1.0), (1.0, 0.82), (-1.0, 0.82)]
    pen.polygon(_placed(corners, centre, radius), fill=255)


def _star(pen: ImageDraw.ImageDraw, centre: Point, radius: float) -> None:
    reaches = [1.08 if spike % 2 == 0 else 0.46 for spike in range(10)]
    corners = [
        (reach * math.sin(math.pi * spike / 5), -reach * math.cos(math.pi * spike / 5))
        for spike, reach in enumerate(reaches)
    ]
    pen.polygon(_placed(corners, centre, radius), fill=255)


def _heart(pen: ImageDraw.ImageDraw, centre: Point, radius: float) -> None:
    # The usual heart curve, x = 16 sin^3 t, stretched to the radius.
    turns = [2 * math.pi * step / 96 for step in range(96)]
    corners = [
        (
            math.sin(turn) ** 3 * 1.02,
            -(
                13 * math.cos(turn)
                - 5 * math.cos(2 * turn)
                - 2 * math.cos(3 * turn)
                - math.cos(4 * turn)
            )
            / 15.0
            - 0.12,
        )
        for turn in turns
    ]
    pen.polygon(_placed(corners, centre, radius), fill=255)


def _box(centre: Point, radius: float) -> tuple[float, float, float, float]:
    x, y = centre
    return x - radius, y - radius, x + radius - 1, y + radius - 1


def _placed(corners: list[Point], centre: Point, radius: float) -> list[Point]:
    return [(centre[0] + x * radius, centre[1] + y * radius) for x, y in corners]


_DRAW_SHAPE: dict[str, Callable[[ImageDraw.ImageDraw, Point, float], None]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "ring": _ring,
    "heart": _heart,
}
