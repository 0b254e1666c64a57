"""Round images of diffusers to the levels that a file has."""

import numpy as np
from numpy.typing import NDArray


def to_levels(images: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Round images from 0 to 1 to levels from 0 to 255.

    Raises:
        ArithmeticError: a value is NaN or infinite.
    """
    if not np.isfinite(images).all():
        raise ArithmeticError("the images are not finite")
    return (images * 255).round().astype(np.uint8)
