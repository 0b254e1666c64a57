"""Outlines: the scenes as a LoRA draws them, and a measure of how hollow a shape is.

The module does not import torch, so that tests can import it with numpy and Pillow alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tools.train_shapes.scenes import (
    PALETTE,
    RADII,
    SIDE,
    Coverage,
    ImageArray,
    Jitter,
    Scene,
    blend,
    centre_of,
    shape_coverage,
    to_image,
)

LORA_FILE = Path(__file__).parents[2] / "tests" / "fixtures" / "outline.safetensors"
"""The LoRA that `train_lora` wrote."""

HOLE = 0.6
"""The radius of the hole in a shape, as a share of the shape's radius."""
_MEASURED = 0.6
"""The part of the hole that `fill` measures: a shape may be shifted a little."""


def draw_outline(scene: Scene, jitter: Jitter) -> ImageArray:
    """Draw a scene whose shape has a hole of its own form, uint8 `[64, 64, 3]`.

    A ring is hollow already and stays as it is.
    """
    combination, (x, y) = scene.combination, centre_of(scene.size, scene.position)
    centre = (x + jitter.shift[0], y + jitter.shift[1])
    radius = RADII[scene.size] * jitter.growth
    coverage = shape_coverage(combination.shape, centre=centre, radius=radius)
    if combination.shape != "ring":
        coverage = coverage - _hole(scene, centre, radius * HOLE)
    colour = np.asarray(PALETTE[combination.colour], np.float32) + jitter.colour_shade
    background = np.asarray(PALETTE[combination.background], np.float32) + jitter.background_shade
    canvas = np.broadcast_to(background.astype(np.float32), (SIDE, SIDE, 3))
    return to_image(blend(canvas, colour.astype(np.float32), coverage))


def fill(image: ImageArray, scene: Scene) -> float:
    """Return how much of the hole of a scene's shape has the shape's colour: 0 none, 1 all."""
    radius = RADII[scene.size] * HOLE * _MEASURED
    hole = _hole(scene, centre_of(scene.size, scene.position), radius)
    background = np.asarray(PALETTE[scene.combination.background], np.float32)
    way = np.asarray(PALETTE[scene.combination.colour], np.float32) - background
    share = np.clip((image - background) @ way / (way @ way), 0, 1)
    return float((share * hole).sum() / hole.sum())


def _hole(scene: Scene, centre: tuple[float, float], radius: float) -> Coverage:
    return shape_coverage(scene.combination.shape, centre=centre, radius=radius)
