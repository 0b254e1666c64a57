"""Put back the pixels that an inpainting job keeps: decoding changes them by some levels."""

import numpy as np

from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageArray

_WHITE = 255


def restore_kept_pixels(image: ImageArray, init_image: InitImage | None) -> ImageArray:
    """Return the generated `image` where the mask is white, and the init image where it is black.

    Grey levels blend the two, so a mask with a soft edge gives a soft transition.

    Args:
        image: uint8 [height, width, 3], RGB.
        init_image: its pixels and mask have the same height and width.
    """
    if init_image is None or init_image.mask_levels is None:
        return image
    generated_share = init_image.mask_levels[:, :, None].astype(np.uint32)
    kept_share = _WHITE - generated_share
    blended = image * generated_share + init_image.pixels * kept_share
    return ((blended + _WHITE // 2) // _WHITE).astype(np.uint8)
