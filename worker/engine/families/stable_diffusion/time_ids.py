"""Give the numbers about an image that SDXL's UNets embed (Podell et al. 2023, section 2.2).

Input: the image's size. Output: diffusers' `time_ids` with its default values.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

AESTHETIC_SCORES: Final = (2.5, 6.0)
"""They are diffusers' defaults of `negative_aesthetic_score` and `aesthetic_score`."""


def time_ids(height: int, width: int, *, has_aesthetic_scores: bool) -> NDArray[np.float32]:
    """Return the numbers for the negative prompt and the prompt, float32 `[2, t]`.

    They are the original size of an image that is not cropped, its crop corner, and its target
    size, in pixels. SDXL's refiner gets an aesthetic score in the place of the target size.
    """
    original = (height, width, 0, 0)
    if has_aesthetic_scores:
        return np.array([(*original, score) for score in AESTHETIC_SCORES], np.float32)
    return np.array([(*original, height, width)] * 2, np.float32)
