"""Kept pixels of an inpainting job come from its init image."""

import numpy as np

from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.images.inpainting import restore_kept_pixels

GENERATED = np.full((1, 3, 3), 200, np.uint8)


def _init_image(levels: list[int] | None) -> InitImage:
    return InitImage(
        pixels=np.full((1, 3, 3), 100, np.uint8),
        mask_levels=None if levels is None else np.array([levels], np.uint8),
        strength=1,
        digest="",
    )


def test_black_keeps_white_replaces_and_grey_blends() -> None:
    restored = restore_kept_pixels(GENERATED, _init_image([0, 255, 51]))
    assert restored.dtype == np.uint8
    assert restored[0, :, 0].tolist() == [100, 200, 120]


def test_an_image_without_a_mask_stays_as_it_was_generated() -> None:
    assert restore_kept_pixels(GENERATED, _init_image(None)) is GENERATED
    assert restore_kept_pixels(GENERATED, None) is GENERATED
