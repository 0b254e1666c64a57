"""Define the control image: a ControlNet reads it to steer the image that a job generates.

This module reads and checks no files.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class ControlImage:
    """It is a control image. It has the size of the image to generate."""

    pixels: NDArray[np.uint8] = field(repr=False, compare=False)
    """It is RGB, `[height, width, 3]`."""
    digest: str
    """It is `sha256:…` of the pixels, and represents them where specs are compared."""
    image_digest: str = field(default="", compare=False)
    """It is `sha256:…` of the file of the image, as it was read. '': it was no file."""
