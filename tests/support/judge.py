"""The judge names the scene in an image from its pixels alone.

Input: an RGB image, uint8 of shape (64, 64, 3). Output: the names of its colours, shape, size and
position, with the overlap of the named shape. The judge uses neither the prompt nor the model nor
the seed. It needs only numpy and Pillow.

The background is the most frequent palette colour of the border. The coverage of a pixel is its
position between the background and the foreground colour, 0..1. Each shape's outline is moved and
scaled over the coverage, and the best overlap gives shape, size and position.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tools.train_shapes.scenes import (
    DIRECTIONS,
    PALETTE,
    RADII,
    SHAPES,
    SIDE,
    Coverage,
    ImageArray,
    Scene,
    centre_of,
    shape_coverage,
)

Pixels = NDArray[np.float32]

FRAME = 3
"""Pixels of the border that count as background."""

FAINT = 40.0
"""Pixels with a smaller RGB distance from the background belong to it."""

_TEMPLATE_SIDE = 40
_TEMPLATE_REACH = 1.3
_STEPS = ((0.08, 0.12), (0.04, 0.06), (0.02, 0.03))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the image shows. `overlap` is the shape's intersection over union, 0..1."""

    colour: str
    background: str
    shape: str
    size: str
    position: str
    overlap: float


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A shape's middle and radius in pixels, and its overlap."""

    x: float
    y: float
    radius: float
    overlap: float = -1.0


@dataclass(frozen=True, kw_only=True)
class Score:
    """The attributes that the image shares with the expected scene."""

    background: bool
    colour: bool
    position: bool
    size: bool
    shape: bool

    @property
    def everything(self) -> bool:
        """Whether all attributes but the size are right. The size is reported separately."""
        return self.background and self.colour and self.position and self.shape


def judge(image: ImageArray) -> Verdict:
    """Return what the image shows. An empty image gets names too, with an overlap near 0."""
    pixels = image.astype(np.float32)
    background, background_rgb = _background(pixels)
    colour, foreground = _foreground(pixels, background, background_rgb)
    coverage = _coverage(pixels, background_rgb, foreground)
    fits = {shape: _fit(coverage, shape) for shape in SHAPES}
    shape = max(fits, key=lambda name: fits[name].overlap)
    size, position = _size_and_position(fits[shape])
    return Verdict(
        colour=colour,
        background=background,
        shape=shape,
        size=size,
        position=position,
        overlap=fits[shape].overlap,
    )


def score(verdict: Verdict, expected: Scene) -> Score:
    """Compare a verdict with the expected scene."""
    return Score(
        background=verdict.background == expected.combination.background,
        colour=verdict.colour == expected.combination.colour,
        position=verdict.position == expected.position,
        size=verdict.size == expected.size,
        shape=verdict.shape == expected.combination.shape,
    )


def nearest_colour(rgb: Pixels, *, but_not: str | None = None) -> str:
    """Return the palette's name for one colour (3,)."""
    names = [name for name in PALETTE if name != but_not]
    return min(names, key=lambda name: math.dist(PALETTE[name], rgb))


def _background(pixels: Pixels) -> tuple[str, Pixels]:
    inside = np.zeros(pixels.shape[:2], bool)
    inside[FRAME:-FRAME, FRAME:-FRAME] = True
    frame = pixels[~inside]
    palette = np.asarray(list(PALETTE.values()), np.float32)
    nearest = np.linalg.norm(frame[:, None] - palette[None], axis=-1).argmin(axis=1)
    winner = int(np.bincount(nearest, minlength=len(palette)).argmax())
    background_rgb = np.median(frame[nearest == winner], axis=0).astype(np.float32)
    return list(PALETTE)[winner], background_rgb


def _foreground(pixels: Pixels, background: str, background_rgb: Pixels) -> tuple[str, Pixels]:
    distance = np.linalg.norm(pixels - background_rgb, axis=-1)
    # Pixels on an edge are mixtures. Only those far from the background show the foreground colour.
    clear = distance >= max(FAINT, 0.75 * float(np.quantile(distance, 0.98)))
    if not clear.any():
        clear = distance >= distance.max()
    foreground = np.median(pixels[clear], axis=0).astype(np.float32)
    return nearest_colour(foreground, but_not=background), foreground


def _coverage(pixels: Pixels, background_rgb: Pixels, foreground: Pixels) -> Coverage:
    way = foreground - background_rgb
    length = max(float(way @ way), 1.0)
    share = np.clip((pixels - background_rgb) @ way / length, 0.0, 1.0)
    return np.where(share < 0.15, 0.0, share).astype(np.float32)


def _fit(coverage: Coverage, shape: str) -> Placement:
    template, area, offset = _template(shape)
    mass = float(coverage.sum())
    if mass < 4.0:
        return Placement(x=SIDE / 2, y=SIDE / 2, radius=1.0, overlap=0.0)
    rows, columns = np.indices(coverage.shape, dtype=np.float32) + 0.5
    radius = math.sqrt(mass / area)
    best = Placement(
        x=float((columns * coverage).sum()) / mass - offset[0] * radius,
        y=float((rows * coverage).sum()) / mass - offset[1] * radius,
        radius=radius,
    )
    best = _measured(coverage, template, best)
    for shift, growth in _STEPS:
        best = _climb(coverage, template, best, shift=shift, growth=growth)
    return best


def _climb(
    coverage: Coverage, template: Coverage, start: Placement, *, shift: float, growth: float
) -> Placement:
    best = start
    for _ in range(4):
        around = [
            Placement(
                x=best.x + dx * shift * best.radius,
                y=best.y + dy * shift * best.radius,
                radius=best.radius * (1 + dr * growth),
            )
            for dx, dy, dr in itertools.product((-1, 0, 1), repeat=3)
            if abs(dx) + abs(dy) + abs(dr) == 1
        ]
        better = max(
            (_measured(coverage, template, one) for one in around), key=lambda one: one.overlap
        )
        if better.overlap <= best.overlap:
            break
        best = better
    return best


def _measured(coverage: Coverage, template: Coverage, place: Placement) -> Placement:
    """Return the place with the overlap of the template there and the image's coverage."""
    steps = (np.arange(_TEMPLATE_SIDE, dtype=np.float32) + 0.5) / _TEMPLATE_SIDE * 2 - 1
    reach = (steps * _TEMPLATE_REACH * place.radius).astype(np.float32)
    seen = _sampled(coverage, place.y + reach, place.x + reach)
    cell = (2 * _TEMPLATE_REACH * place.radius / _TEMPLATE_SIDE) ** 2
    common = float(np.minimum(seen, template).sum()) * cell
    union = float(coverage.sum()) + float(template.sum()) * cell - common
    return Placement(x=place.x, y=place.y, radius=place.radius, overlap=common / max(union, 1e-6))


def _sampled(coverage: Coverage, rows: Pixels, columns: Pixels) -> Coverage:
    """Return bilinear samples on the grid rows x columns. The coverage outside the image is 0."""
    padded = np.pad(coverage, 1)
    top, down = _neighbours(rows)
    left, right = _neighbours(columns)
    upper = padded[top][:, left] * (1 - right) + padded[top][:, left + 1] * right
    lower = padded[top + 1][:, left] * (1 - right) + padded[top + 1][:, left + 1] * right
    sampled = upper * (1 - down)[:, None] + lower * down[:, None]
    return sampled.astype(np.float32, copy=False)


def _neighbours(places: Pixels) -> tuple[NDArray[np.intp], Pixels]:
    # Coordinates refer to pixel corners: subtract 0.5 for the middle, and add 1 for the padding.
    shifted = np.clip(places + 0.5, 0.0, SIDE + 0.999).astype(np.float32)
    lower = np.floor(shifted).astype(np.intp)
    return lower, (shifted - lower).astype(np.float32)


@cache
def _template(shape: str) -> tuple[Coverage, float, tuple[float, float]]:
    """Return the outline on a grid over +-1.3 radii, and its area and centroid for radius 1."""
    mask = shape_coverage(
        shape, centre=(0.5, 0.5), radius=0.5 / _TEMPLATE_REACH, side=_TEMPLATE_SIDE
    )
    steps = (
        (np.arange(_TEMPLATE_SIDE, dtype=np.float32) + 0.5) / _TEMPLATE_SIDE * 2 - 1
    ) * _TEMPLATE_REACH
    mass = float(mask.sum())
    area = mass * (2 * _TEMPLATE_REACH / _TEMPLATE_SIDE) ** 2
    centroid = (float((mask * steps).sum()) / mass, float((mask * steps[:, None]).sum()) / mass)
    return mask, area, centroid


def _size_and_position(place: Placement) -> tuple[str, str]:
    size = min(RADII, key=lambda name: abs(math.log(RADII[name] * SIDE / max(place.radius, 1.0))))
    middle = (place.x / SIDE, place.y / SIDE)
    position = min(DIRECTIONS, key=lambda name: math.dist(centre_of(size, name), middle))
    return size, position
